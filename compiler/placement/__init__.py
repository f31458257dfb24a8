"""The choice of the equivalent program that is taken, and of the places where its values live."""
