"""What `make test-all` runs beside `make test`.

Tests that drive several parts at once (a farm with its agents, the pages of the documentation, installed wheels, faults
in flight, hostile boards), and campaigns over many cases.
"""
