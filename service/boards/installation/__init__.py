"""The files that a new board fetches before it is anybody: the script that enrols it, and the agent as one file."""
