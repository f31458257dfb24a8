"""One module per page: facts -> what its template draws."""
