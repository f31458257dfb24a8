"""Register tiles and cache blocks: what matrix products and convolutions share."""
