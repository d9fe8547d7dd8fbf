"""The rows of the fault matrix; every module here is found by itself and declares its rows."""
