"""The tree over a log of results, as in RFC 6962: proofs that an entry is in it, and that it only ever grew.

`H(0x00 || entry)` is a leaf, `H(0x01 || left || right)` a node, H is SHA-256; hashes are lower-case hex. A tree of n
leaves splits at the largest power of two below n. Standard library only.
"""

import hashlib
from collections.abc import Callable, Sequence

Hash = str
Complete = Callable[[int, int], Hash]
"""(level, position) -> the hash of a complete subtree of 2^level leaves; level 0: of a leaf."""
EMPTY: Hash = hashlib.sha256(b"").hexdigest()
_SIZE = 64


def leaf_hash(entry: bytes) -> Hash:
    return hashlib.sha256(b"\x00" + entry).hexdigest()


def node_hash(left: Hash, right: Hash) -> Hash:
    return hashlib.sha256(b"\x01" + bytes.fromhex(left) + bytes.fromhex(right)).hexdigest()


def is_hash(text: str) -> bool:
    """Whether the text is 64 lower-case hex digits: a hash has one spelling."""
    return len(text) == _SIZE and set(text) <= set("0123456789abcdef")


def root(size: int, complete: Complete) -> Hash:
    """Returns the root of the first `size` leaves."""
    return _hash(0, size, complete) if size else EMPTY


def inclusion(index: int, size: int, complete: Complete) -> tuple[Hash, ...]:
    """The hashes that, with the leaf, give the root of the first `size` leaves; the leaf's neighbour first."""
    return _inclusion(index, 0, size, complete)


def consistency(first: int, second: int, complete: Complete) -> tuple[Hash, ...]:
    """The hashes that show the first `first` leaves to be those of the first `second` (0 < first <= second)."""
    return _consistency(first, 0, second, complete, is_whole=True)


def includes(root_hash: Hash, *, leaf: Hash, index: int, size: int, proof: Sequence[Hash]) -> bool:
    """Whether the proof shows the leaf at this index of a tree with this root. Source: RFC 9162, 2.1.3.2."""
    if not 0 <= index < size or not all(map(is_hash, (root_hash, leaf, *proof))):
        return False
    computed, here, last = leaf, index, size - 1
    for step in proof:
        if last == 0:
            return False
        if here & 1 or here == last:
            computed = node_hash(step, computed)
            while not here & 1 and here:
                here, last = here >> 1, last >> 1
        else:
            computed = node_hash(computed, step)
        here, last = here >> 1, last >> 1
    return last == 0 and computed == root_hash


def grew(old: tuple[int, Hash], new: tuple[int, Hash], proof: Sequence[Hash]) -> bool:
    """Whether the proof shows the older tree (size, root) to begin the newer. Source: RFC 9162, 2.1.4.2."""
    (first, first_root), (second, second_root) = old, new
    if not 0 < first <= second or not all(map(is_hash, (first_root, second_root, *proof))):
        return False
    if first == second:
        return not proof and first_root == second_root
    steps = [first_root, *proof] if first & (first - 1) == 0 else list(proof)
    if not steps:
        return False
    here, last = first - 1, second - 1
    while here & 1:
        here, last = here >> 1, last >> 1
    older = newer = steps[0]
    for step in steps[1:]:
        if last == 0:
            return False
        if here & 1 or here == last:
            older, newer = node_hash(step, older), node_hash(step, newer)
            while not here & 1 and here:
                here, last = here >> 1, last >> 1
        else:
            newer = node_hash(newer, step)
        here, last = here >> 1, last >> 1
    return last == 0 and older == first_root and newer == second_root


def _split(count: int) -> int:
    return 1 << ((count - 1).bit_length() - 1)


def _hash(low: int, high: int, complete: Complete) -> Hash:
    count = high - low
    if count & (count - 1) == 0:
        level = count.bit_length() - 1
        return complete(level, low >> level)
    middle = low + _split(count)
    return node_hash(_hash(low, middle, complete), _hash(middle, high, complete))


def _inclusion(index: int, low: int, high: int, complete: Complete) -> tuple[Hash, ...]:
    if high - low == 1:
        return ()
    middle = low + _split(high - low)
    if index < middle:
        return (*_inclusion(index, low, middle, complete), _hash(middle, high, complete))
    return (*_inclusion(index, middle, high, complete), _hash(low, middle, complete))


def _consistency(first: int, low: int, high: int, complete: Complete, *, is_whole: bool) -> tuple[Hash, ...]:
    if first == high:
        return () if is_whole else (_hash(low, high, complete),)
    middle = low + _split(high - low)
    if first <= middle:
        return (*_consistency(first, low, middle, complete, is_whole=is_whole), _hash(middle, high, complete))
    return (*_consistency(first, middle, high, complete, is_whole=False), _hash(low, middle, complete))
