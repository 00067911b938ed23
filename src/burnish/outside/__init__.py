"""Input from outside: files and code of the user, the processes that run that code, and clients of a server."""
