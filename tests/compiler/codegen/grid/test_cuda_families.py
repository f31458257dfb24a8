"""A test of each family once more, over CUDA's text as C++ on this CPU, in two orders of items and groups.

What they test they say where they are from. `tests/thorough/compiler/codegen/grid` has all of them.
"""

# ruff: noqa: F401
from __future__ import annotations

from tests.compiler.codegen.grid.by_cuda import by_cuda
from tests.compiler.codegen.grid.test_attention import test_both_directions as test_attention_in_both_directions
from tests.compiler.codegen.grid.test_contraction import (
    test_sums_are_split_too,
    test_weights_of_a_convolution_in_place,
    test_what_is_no_number_stays_in_its_row_and_column,
)
from tests.compiler.codegen.grid.test_depthwise import test_epilogues_in_place as test_depthwise_epilogues_in_place
from tests.compiler.codegen.grid.test_gather import test_update_with_momentum_moves_every_row
from tests.compiler.codegen.grid.test_movement import test_linear_recurrence, test_select
from tests.compiler.codegen.grid.test_norm_grad import test_d_x_takes_the_place_of_a_residual
from tests.compiler.codegen.grid.test_pool import test_epilogues_in_place as test_pool_epilogues_in_place
from tests.compiler.codegen.grid.test_pool import test_places_of_ties_and_odd_numbers
from tests.compiler.codegen.grid.test_recurrence import test_both_directions as test_recurrence_in_both_directions
from tests.compiler.codegen.grid.test_reduce import test_an_update_in_place, test_counting_true_values
from tests.compiler.codegen.grid.test_row import (
    test_guarded_reads_and_positions,
    test_several_outputs_over_each_others_inputs,
)
