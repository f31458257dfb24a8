"""Small faults in the product's sources: which command finds them, `make test`, or only `make test-all`?"""
