"""The console: the log as a page, served beside the HTTP API."""
