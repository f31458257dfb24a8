"""Files that come in pieces, and go on where a connection was cut; who may name a file by its digest."""
