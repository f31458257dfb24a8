"""What the tests of the service share: databases of both kinds, and farms on them."""
