"""A script on the stub engine: the process that runs it, what is recorded there, and the report that is made of it."""
