"""Matrix products and dense convolutions for a grid, all as one contraction: C[batch, m, n] = sum_k A(m, k) B(k, n).

`product` says which contraction a spec is, `plan` in which tiles and parts it is computed, `operand` how an operand's
place follows from m, n and k; `emit` writes the launches, out of tiles that a `loader` fills, a `register_tile` or
`tensor_tile` multiplies and an ending writes.
"""
