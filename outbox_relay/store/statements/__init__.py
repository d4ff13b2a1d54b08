"""Every statement of the store: one named function each, with the reason for its shape.

Rules that hold for all of them:

- A status is a literal, never a parameter: a partial index cannot be proven from a parameter, and a prepared statement
  that went generic would read the whole table.
- The database's clock decides; the client gives spans, never instants of "now".
- Writes that end or move a claim are fenced by its token, without naming the status: the token is NULL
  wherever there is no claim, and the planner keeps to the primary key.
- Rows are locked in the order of their ids before they are changed, so that two writers never wait for each other.

The functions are cached: the same tables and dialect give the same object, whose SQL is compiled once.
"""
