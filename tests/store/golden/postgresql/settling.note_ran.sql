UPDATE outbox_row SET error=(coalesce(outbox_row.error || '; ', '') || ids.note) FROM unnest(%(ids_id)s::BIGINT[], %(ids_note)s::TEXT[]) AS ids(id, note) WHERE outbox_row.id = ids.id
