"""The families' tests of numbers once more, over CUDA's text as C++ on this CPU, in two orders of items and groups.

What they test they say where they are from. `make test` has a test of each family.
"""

# ruff: noqa: F401
from __future__ import annotations

from tests.compiler.codegen.grid.by_cuda import by_cuda
from tests.compiler.codegen.grid.test_attention import (
    test_a_device_of_small_groups,
    test_a_number_that_is_none_stays_in_its_rows,
    test_long_sums_keep_their_digits,
    test_only_what_is_wanted_is_written,
    test_rows_that_see_nothing_are_as_pytorch_has_them,
)
from tests.compiler.codegen.grid.test_attention import test_both_directions as test_attention_in_both_directions
from tests.compiler.codegen.grid.test_contraction import (
    test_convolutions,
    test_epilogues,
    test_epilogues_of_convolutions,
    test_groups,
    test_odd_convolutions,
    test_products,
    test_sums_are_split_too,
    test_updates_in_place,
    test_weights_of_a_convolution_in_place,
    test_what_is_no_number_stays_in_its_row_and_column,
)
from tests.compiler.codegen.grid.test_contraction import test_sums as test_sums_beside_a_gradient
from tests.compiler.codegen.grid.test_depthwise import test_epilogues_in_place as test_depthwise_epilogues_in_place
from tests.compiler.codegen.grid.test_depthwise import test_kinds as test_depthwise_kinds
from tests.compiler.codegen.grid.test_depthwise import test_long_sums as test_long_depthwise_sums
from tests.compiler.codegen.grid.test_gather import (
    test_gather as test_rows_of_a_table,
)
from tests.compiler.codegen.grid.test_gather import (
    test_indices_outside_touch_no_foreign_memory,
    test_rows_that_are_skipped_keep_what_the_output_held,
    test_scatter_add,
    test_update_that_skips_rows_leaves_their_bytes,
    test_update_with_momentum_moves_every_row,
    test_whole_numbers_add_up_exactly,
)
from tests.compiler.codegen.grid.test_movement import (
    test_elements_are_picked,
    test_elements_are_put,
    test_elements_that_go_to_the_same_rows_everywhere_are_summed,
    test_linear_recurrence,
    test_nan_is_higher_than_any_number_that_is_put,
    test_positions_outside_touch_no_foreign_memory,
    test_resample,
    test_running_sum,
    test_running_sums_of_whole_numbers_are_exact,
    test_select,
    test_select_of_whole_numbers,
    test_whole_numbers_are_put,
)
from tests.compiler.codegen.grid.test_norm_grad import (
    test_a_large_mean_leaves_the_variance,
    test_d_x_takes_the_place_of_a_residual,
)
from tests.compiler.codegen.grid.test_norm_grad import test_the_gradient as test_the_gradient_of_a_norm
from tests.compiler.codegen.grid.test_pool import test_epilogues_in_place as test_pool_epilogues_in_place
from tests.compiler.codegen.grid.test_pool import (
    test_maxima_and_their_gradient,
    test_means_and_their_gradient,
    test_places_give_the_same_gradient,
    test_places_of_ties_and_odd_numbers,
)
from tests.compiler.codegen.grid.test_recurrence import (
    test_both_directions as test_recurrence_in_both_directions,
)
from tests.compiler.codegen.grid.test_reduce import (
    test_an_update_in_place,
    test_counting_true_values,
    test_max_passes_nan_on,
    test_maxima,
    test_positions_can_be_read,
    test_sums,
    test_sums_of_windows_that_reach_past_the_edge,
    test_whole_numbers,
)
from tests.compiler.codegen.grid.test_row import (
    test_guarded_reads_and_positions,
    test_nothing_seen_and_nan,
    test_outputs_take_the_place_of_inputs,
    test_rows_across_memory,
    test_rows_agree_with_float64,
    test_rows_without_statistics,
    test_several_outputs_over_each_others_inputs,
)
from tests.compiler.codegen.grid.test_text import (
    test_a_constant_may_be_no_number,
    test_constant_exponents,
    test_constants_of_whole_numbers_keep_all_their_bits,
    test_constants_survive_bit_for_bit,
    test_constants_that_stand_alone_survive_bit_for_bit,
    test_functions_of_one_operand,
    test_functions_of_two_operands,
    test_whole_numbers_over_zero_are_those_of_numpy,
)
