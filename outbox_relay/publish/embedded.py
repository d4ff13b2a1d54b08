"""A broker in a folder: kombu's filesystem transport with honest writes, for development and single hosts."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

from kombu.transport import filesystem
from kombu.utils.json import dumps


class Channel(filesystem.Channel):
    """A channel over the folder that the broker URL names."""

    def _put(self, queue: str, payload: dict[str, Any], **kwargs: Any) -> None:
        name = f"{time.time_ns():020d}_{uuid.uuid4()}.{queue}.msg"
        part = os.path.join(self.data_folder_out, name + ".part")
        with open(part, "wb") as file:
            file.write(dumps(payload).encode())
        os.replace(part, os.path.join(self.data_folder_out, name))

    @property
    def data_folder_in(self) -> str:
        return str(self.folder / "messages")

    data_folder_out = data_folder_in

    @property
    def control_folder(self) -> Path:
        return self.folder / "control"

    @property
    def folder(self) -> Path:
        folder = Path(self.connection.client.virtual_host)
        (folder / "messages").mkdir(parents=True, exist_ok=True)
        return folder


class Transport(filesystem.Transport):
    """``embedded:///relative/folder`` or ``embedded:////absolute/folder``."""

    Channel = Channel
    driver_type = "embedded"
    driver_name = "embedded"
    polling_interval = 0.03
