"""Kinds of fault that released attention kernels have had, and the tests that would show each of them here.

A kind's tests are named as pytest names them, without parameters; `test_covered` checks that they exist.
"""

KERNELS, STAGES, EMULATOR = "tests/kernels/", "tests/stages/", "tests/emulator/"
GENERATOR, FAULTS = "tests/generator/", "tests/faults/"

MEMORY = {
    "NaN or Inf in a slot that a row may not see, with weight 0": [
        KERNELS + "test_memory.py::test_what_no_row_sees_changes_no_bit",
        KERNELS + "test_split_memory.py::test_what_no_row_sees_changes_no_bit",
        STAGES + "softmax/test_online.py::test_unseen_scores_do_not_matter",
        STAGES + "values/test_mma_pv.py::test_unseen_pages_may_hold_anything",
    ],
    "slots before a window, in the page that it begins in": [
        KERNELS + "test_split_memory.py::test_what_no_row_sees_changes_no_bit",
        KERNELS + "test_split.py::test_windows",
    ],
    "freed and padded table entries that name page 0": [
        FAULTS + "test_memory.py::test_freed_and_padded_entries_are_page_0",
    ],
    "shared memory as the launch before left it": [
        EMULATOR + "checks/test_checker.py::test_shared_memory_starts_unwritten",
        KERNELS + "test_bits.py::test_nothing_is_left_over_from_a_call_full_of_nan",
        KERNELS + "test_split_memory.py::test_nothing_is_left_over_from_a_call_full_of_nan",
    ],
    "table entries that are not live, followed or prefetched": [
        FAULTS + "test_memory.py::test_entries_that_are_not_live_are_not_followed",
        STAGES + "pages/test_walk.py::test_entries_stay_in_the_table",
        STAGES + "ring/test_entries.py::test_an_entry_past_the_table_is_its_last",
    ],
    "the length taken from how many pages a row has": [
        KERNELS + "test_memory.py::test_the_length_comes_from_seq_lens_alone",
        KERNELS + "test_split_memory.py::test_the_length_comes_from_seq_lens_alone",
    ],
}

ADDRESSES = {
    "page times stride in 32 bits": [
        KERNELS + "test_memory.py::test_addresses_past_32_bits",
        KERNELS + "test_split_memory.py::test_addresses_past_32_bits",
        STAGES + "pages/test_walk.py::test_addresses_have_64_bits",
        FAULTS + "test_addresses.py::test_page_strides_of_4_gib_are_refused",
    ],
    "strides assumed": [
        KERNELS + "test_memory.py::test_strides_are_honoured",
        KERNELS + "test_memory.py::test_heads_may_be_a_dimension_and_out_a_slice",
        KERNELS + "test_split_memory.py::test_strides_are_honoured",
        FAULTS + "test_addresses.py::test_strides_of_dimensions_of_size_1_do_not_matter",
    ],
    "a base pointer that is not aligned": [
        KERNELS + "test_host.py::test_wrong_arguments_are_refused",
        KERNELS + "test_split_host.py::test_wrong_scratch_is_refused",
    ],
}

LENGTHS_AND_GRAPHS = {
    "requests of length 0, and rows without a key": [
        KERNELS + "test_cluster.py::test_short_and_padded_requests_are_zeros_where_no_key_is_seen",
        KERNELS + "test_cluster.py::test_a_batch_of_padding_is_zeros",
        KERNELS + "test_split.py::test_short_and_padded_requests_are_zeros_where_no_key_is_seen",
        KERNELS + "test_split.py::test_a_batch_of_padding_is_zeros",
    ],
    "a graph captured at one length and replayed at another": [
        FAULTS + "test_lengths_and_graphs.py::test_lengths_change_where_nothing_else_does",
        KERNELS + "test_bits.py::test_a_graph_captured_short_serves_every_length",
        KERNELS + "test_split_bits.py::test_a_graph_captured_short_serves_every_length",
    ],
    "right for one request, wrong among others": [
        KERNELS + "test_bits.py::test_a_request_does_not_mind_its_batch",
        KERNELS + "test_split_bits.py::test_a_request_does_not_mind_its_batch",
        KERNELS + "test_scratch.py::test_splits_do_not_depend_on_the_batch",
    ],
    "lengths around bounds of pages, rounds, rings, shares and splits": [
        KERNELS + "test_cluster.py::test_lengths_around_boundaries",
        KERNELS + "test_split.py::test_lengths",
        KERNELS + "test_split.py::test_lengths_around_the_bounds_of_shares",
    ],
    "fewer pages than ring stages, warps, CTAs or splits": [
        FAULTS + "test_lengths_and_graphs.py::test_fewer_pages_than_parts",
        FAULTS + "test_lengths_and_graphs.py::test_more_splits_than_pages",
        KERNELS + "test_cluster.py::test_every_short_length",
    ],
}

MASKS_AND_NUMBERS = {
    "one window edge for all rows": [
        FAULTS + "test_masks_and_numbers.py::test_each_token_has_its_own_edge",
        KERNELS + "test_split.py::test_equal_scores_give_exactly_the_mean_of_the_visible_keys",
    ],
    "a window off by one key, or by one page": [
        KERNELS + "test_split.py::test_windows",
        KERNELS + "test_split_host.py::test_window_pages_is_the_most_over_every_alignment",
    ],
    "-inf minus -inf, and logits below a finite stand-in for it": [
        FAULTS + "test_masks_and_numbers.py::test_equal_logits_of_minus_1e5",
        KERNELS + "test_cluster.py::test_equal_logits_of_minus_1e5",
    ],
    "extreme logits, values and gates": [
        KERNELS + "test_cluster.py::test_huge_logits",
        KERNELS + "test_cluster.py::test_magnitudes_of_v",
        KERNELS + "test_cluster.py::test_extreme_gates",
        KERNELS + "test_split.py::test_extreme_logits",
        FAULTS + "test_masks_and_numbers.py::test_magnitudes_of_v",
        FAULTS + "test_masks_and_numbers.py::test_extreme_gates",
    ],
    "a row's scale, which a norm hides": [
        KERNELS + "test_cluster.py::test_equal_scores_give_exactly_the_mean_of_the_visible_keys",
        KERNELS + "test_cluster.py::test_every_weight_of_a_short_request",
        KERNELS + "test_split.py::test_equal_scores_give_exactly_the_mean_of_the_visible_keys",
    ],
    "a visible NaN that reaches other rows, or not its own": [
        KERNELS + "test_memory.py::test_visible_nan_reaches_the_rows_that_see_it_and_no_other",
        KERNELS + "test_split_memory.py::test_visible_nan_reaches_the_rows_that_see_it_and_no_other",
    ],
}

MERGING = {
    "counters and workspace: too small, left dirty, shared or reused": [
        KERNELS + "test_split_host.py::test_wrong_scratch_is_refused",
        KERNELS + "test_split_bits.py::test_what_the_workspace_holds_does_not_matter",
        KERNELS + "test_split_bits.py::test_two_streams_with_two_workspaces_do_not_meet",
        STAGES + "grid_merge/test_workspace.py::test_one_launch_after_the_other",
    ],
    "arrivals without release, and readers without acquire": [
        STAGES + "grid_merge/test_workspace.py::test_a_fault_shows",
        KERNELS + "test_schedules.py::test_timing_changes_no_bit",
        KERNELS + "test_split_bits.py::test_a_loaded_device_changes_nothing",
    ],
    "clusters: barriers not yet initialised, CTAs that end too early, CTA scope, threads that stay away": [
        EMULATOR + "checks/test_planted_faults.py::test_a_missing_cluster_barrier",
        EMULATOR + "checks/test_planted_faults.py::test_a_missing_fence_behind_the_initialisation",
        EMULATOR + "checks/test_planted_faults.py::test_a_cta_that_ends_too_early",
        EMULATOR + "checks/test_planted_faults.py::test_a_wait_at_cta_scope",
        EMULATOR + "checks/test_planted_faults.py::test_a_barrier_that_a_warp_does_not_reach",
    ],
    "dependent launch: what a producer writes is read before the wait for it": [
        FAULTS + "test_merging.py::test_nothing_is_touched_before_the_wait",
        GENERATOR + "test_compiled.py::test_pdl_changes_the_kernel",
    ],
}

HOST = {
    "a cluster that the device, or its slice, cannot hold": [
        KERNELS + "test_launch.py::test_a_device_too_small_for_a_cluster_is_refused",
        KERNELS + "test_launch.py::test_a_kernel_is_loaded_with_what_its_launches_need",
    ],
    "lengths, tables and other tensors of another type, or left on another device": [
        KERNELS + "test_host.py::test_wrong_arguments_are_refused",
        KERNELS + "test_host.py::test_tensors_left_on_the_cpu_are_refused",
        KERNELS + "test_split_host.py::test_wrong_scratch_is_refused",
    ],
    "a device that is not the current one": [
        KERNELS + "test_launch.py::test_the_current_context_stays_as_it_was",
        KERNELS + "test_host.py::test_another_device_than_the_current_one",
        KERNELS + "test_scratch.py::test_scratch_is_that_of_the_named_device",
    ],
    "a side stream": [
        KERNELS + "test_launch.py::test_the_launch_is_the_kernels_own",
        KERNELS + "test_host.py::test_the_launch_goes_to_the_current_stream",
    ],
    "a first call inside a capture": [
        KERNELS + "test_prepare.py::test_nothing_is_compiled_or_loaded_in_a_capture",
        KERNELS + "test_prepare.py::test_a_first_call_in_a_capture_leaves_the_capture_usable",
        KERNELS + "test_bits.py::test_a_first_call_inside_capture_says_what_to_do",
    ],
    "a custom op whose writes are not declared": [
        KERNELS + "test_custom_op.py::test_what_is_written_is_declared",
        KERNELS + "test_custom_op.py::test_calls_stay_in_order",
        KERNELS + "test_custom_op.py::test_opcheck",
    ],
    "an operator's name that stands for another kernel": [
        KERNELS + "test_custom_op.py::test_the_operator_is_named_by_its_content",
    ],
}

GENERATORS = {
    "a source file that is read while it is written": [
        GENERATOR + "test_files.py::test_writes_what_changes_and_nothing_else",
        GENERATOR + "test_files.py::test_a_failed_write_leaves_the_old_file",
    ],
    "a source file that is replaced between import and compilation, or reloaded by its date": [
        FAULTS + "test_sources.py::test_a_module_that_was_replaced_is_not_compiled",
        FAULTS + "test_sources.py::test_a_module_is_loaded_by_its_content",
    ],
    "cache keys that miss an architecture, a stride or a number, or that hold an address": [
        FAULTS + "test_keys.py::test_calls_that_differ_are_not_taken_for_each_other",
        FAULTS + "test_keys.py::test_no_address_is_in_a_key",
        FAULTS + "test_keys.py::test_each_architecture_is_compiled_for",
        KERNELS + "test_host.py::test_what_is_wrong_stays_wrong",
        KERNELS + "test_prepare.py::test_another_device_loads_what_is_compiled",
    ],
    "kernels on disk of another module, compiler, architecture or type, or damaged": [
        GENERATOR + "test_export.py::test_anything_else_is_refused",
        GENERATOR + "test_export.py::test_kernels_of_another_architecture_are_not_even_found",
        GENERATOR + "test_export.py::test_an_export_that_fails_leaves_the_old_kernels",
    ],
    "names made by dropping characters, so that two are one": [
        FAULTS + "test_keys.py::test_forms_have_names_of_their_own",
        GENERATOR + "test_export.py::test_windowed_forms_are_those_of_variants_that_serve_windows",
    ],
    "no GPU, and no architecture named": [
        KERNELS + "test_host.py::test_without_a_gpu_the_errors_say_what_to_do",
        GENERATOR + "test_export.py::test_a_wrong_architecture_is_refused",
    ],
    "names that become identifiers and paths": [
        GENERATOR + "test_spec.py::test_module_names",
        GENERATOR + "test_spec.py::test_variant_names",
        GENERATOR + "test_fuzz.py::test_names_of_files_are_no_code_and_no_markup",
    ],
    "values of another type, and numbers that are none": [
        GENERATOR + "test_spec.py::test_wrong_values",
        KERNELS + "test_host.py::test_wrong_arguments_are_refused",
        GENERATOR + "test_document.py::test_scalars_are_those_of_the_core_schema",
        GENERATOR + "test_fuzz.py::test_every_mutant_is_sound_or_refused",
    ],
    "bombs, huge files, anchors, merge keys and doubled keys": [
        GENERATOR + "test_document.py::test_a_bomb_is_refused_at_once",
        GENERATOR + "test_document.py::test_refused",
        GENERATOR + "test_document.py::test_a_duplicate_key_does_not_hide_the_rest",
        GENERATOR + "test_fuzz.py::test_a_huge_file_is_refused_at_once",
    ],
}

COVERED = (MEMORY, ADDRESSES, LENGTHS_AND_GRAPHS, MASKS_AND_NUMBERS, MERGING, HOST, GENERATORS)
