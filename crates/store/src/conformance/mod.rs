//! The specification of a store, as cases that every store passes. Each case starts with a new, empty store.
//!
//! A test file names a function that creates a store, and [`conformance_suite!`](crate::conformance_suite) turns every
//! case into a test.

pub mod admission;
pub mod backfills;
pub mod batches;
pub mod cache;
pub mod clusters;
pub mod contents;
pub mod copies;
pub mod debug;
pub mod deliveries;
pub mod executions;
pub mod jobs;
pub mod life;
pub mod limits;
pub mod listing;
pub mod make;
pub mod nodes;
pub mod output;
pub mod replicas;
pub mod runs;
pub mod upkeep;

mod snapshot;

pub use snapshot::{Snapshot, fill, fill_beside, fill_final, fill_first, fill_fleet, fill_graph, fill_nodes};

/// Creates a test for each case. `$fresh` is an async function without arguments; it returns a value with a field
/// `store` and an async method `done`, which is called after the case has passed.
#[macro_export]
macro_rules! conformance_suite {
    ($fresh:ident) => {
        $crate::conformance_suite! { $fresh, conformance_cases }
    };
    ($fresh:ident, $cases:ident) => {
        $crate::$cases! { $fresh;
            nodes {
                the_default_cluster_is_found_by_name_and_id
                a_registered_node_is_online_and_read_back_whole
                a_new_session_replaces_the_old_one_and_stays_drained
                a_registration_that_comes_after_a_newer_one_is_refused
                a_registration_is_refused_when_another_had_the_node_than_its_guard_says
                what_is_wrong_on_a_node_is_said_by_its_session_and_goes_with_it
                a_deleted_node_is_gone_and_remembered
                a_node_may_register_and_be_deleted_in_one_batch
                a_node_is_not_deleted_for_a_silence_that_was_broken_meanwhile
                a_deleted_node_is_held_by_nobody
                a_deleted_node_is_remembered_longer_than_runs_are
                a_node_of_an_unknown_cluster_is_refused
                a_move_needs_the_current_session_and_the_status_that_it_leaves
                draining_needs_a_node
                nodes_are_listed_by_hostname_and_cluster
                a_heartbeat_counts_only_for_the_current_session
                nothing_ends_for_a_silence_that_was_broken_meanwhile
                silent_nodes_are_those_not_offline_and_not_heard_of
            }
            runs {
                a_created_run_is_read_back_whole
                a_run_id_is_used_once
                runs_are_read_by_their_ids
                an_idempotency_key_names_its_first_run
                taking_a_run_raises_its_epoch_by_one
                the_progress_of_a_roll_out_is_kept_with_its_run
                a_cancel_is_asked_for_once_and_not_after_the_end
                a_run_moves_exactly_as_the_table_says
                moving_needs_the_epoch_and_records_start_and_end
                a_path_is_walked_whole_or_not_at_all
            }
            admission {
                a_run_is_paused_and_resumed_until_it_ends
                a_full_queue_takes_no_more
                a_cluster_takes_no_more_open_runs_than_it_may
                a_run_is_let_in_once_by_its_owner_while_it_waits
                no_more_runs_are_admitted_than_may_be_active
                a_run_that_is_paused_or_to_be_cancelled_is_not_let_in
                a_run_takes_all_its_nodes_or_none
                a_run_does_not_take_a_node_that_another_uses
                a_held_node_is_given_nothing_of_another_run
                a_run_that_ends_or_is_pending_again_gives_its_nodes_back
                what_happens_in_one_batch_counts
                holds_are_part_of_a_copy
            }
            executions {
                adding_needs_the_run_and_its_epoch
                added_executions_are_read_back_whole
                executions_are_added_all_or_none
                every_state_answers_every_event_as_the_machine_says
                a_change_that_names_another_run_is_refused
                deciding_for_a_run_needs_its_epoch
                a_final_failure_is_marked_once_on_an_execution_that_did_not_succeed
                a_second_result_in_one_batch_is_refused
                a_result_is_applied_once_however_often_it_is_sent
                executions_are_read_by_their_ids
                a_nul_in_an_error_harms_nothing
            }
            life {
                no_more_runs_of_a_job_start_than_may_be_active
                two_servers_do_not_start_two_runs_of_a_job_at_once
                constraints_and_actions_are_recorded_with_the_run
                a_run_that_starts_forgets_where_it_was_among_its_actions
            }
            limits {
                a_limit_is_full_when_so_many_have_a_place
                every_end_of_a_lease_gives_its_place_back
                what_never_had_a_lease_takes_no_place
                a_rate_counts_what_was_given_out_within_its_time
                one_full_limit_of_several_refuses_and_takes_nothing
                each_is_held_to_its_own_number
                a_number_at_once_and_a_rate_of_one_key_count_apart
                earlier_leases_of_a_batch_count_and_its_ends_do_not_yet
                what_is_born_leased_takes_its_place_or_is_not_born
                a_run_that_goes_takes_its_places_with_it
                a_key_may_be_any_text
                a_large_number_is_counted
            }
            cache {
                the_newest_result_of_each_key_is_found
                only_what_succeeded_and_was_carried_out_is_found
                a_result_goes_with_its_run
                results_are_part_of_a_copy
                another_cluster_has_none_of_it
            }
            batches {
                kinds_are_applied_in_the_order_of_their_phase
                within_a_kind_changes_are_applied_as_given
                a_refused_change_leaves_no_trace_and_harms_no_other
                an_execution_born_and_ended_in_one_batch_is_ended
                an_empty_batch_does_nothing
                a_kind_that_only_newer_programs_know_is_never_written
                events_are_numbered_without_gaps_also_at_once
                events_are_read_from_a_number_on_and_by_run
                events_are_read_up_to_a_number_of_bytes
                events_name_their_subject
                a_failure_precedes_the_executions_that_follow_from_it
                the_events_replayed_give_equal_tables
            }
            listing {
                runs_are_listed_newest_first_by_page_and_filter
                open_runs_are_those_not_ended_oldest_first
                executions_are_listed_by_id_by_page_and_filter
                the_result_of_an_instance_is_its_last_attempt_that_was_not_withdrawn
                the_results_of_a_run_are_those_of_its_last_round
                the_nodes_of_placed_instances_are_found
                instances_are_listed_by_step_by_page_and_filter
                no_read_misses_an_instance_that_moves_on
                large_parts_of_executions_are_read_only_where_they_are_needed
                a_list_that_is_read_by_cursor_has_each_row_once
                runs_are_found_by_every_filter
                runs_are_listed_in_every_order
                open_and_held_executions_are_found
                a_tally_counts_what_there_is
                the_totals_of_a_node_are_those_of_its_own_work
            }
            clusters {
                a_created_cluster_is_read_back_whole
                a_name_belongs_to_one_cluster_until_it_is_deleted
                clusters_may_swap_their_names
                a_cluster_changes_version_by_version
                the_default_cluster_is_not_deleted
                nothing_is_added_to_a_deleted_cluster
                nothing_is_shown_of_a_deleted_cluster
                executions_of_an_older_version_are_refused
                what_follows_an_end_is_added_with_it_and_once
                standing_tasks_of_another_session_are_refused
                a_node_registers_after_its_standing_tasks_were_decided
                standing_runs_are_hidden_from_people
                the_last_attempt_of_each_task_on_each_node_is_read
                lost_attempts_before_the_last_one_are_counted
                executions_of_standing_tasks_are_listed_by_task_and_node
                nothing_is_left_of_a_removed_cluster
                a_cluster_that_is_not_deleted_is_not_removed
                old_attempts_of_standing_tasks_are_removed
                so_many_attempts_are_removed_at_most
                executions_on_a_deleted_node_are_removed
                clusters_are_part_of_a_copy
            }
            jobs {
                an_applied_job_is_read_back_whole
                a_job_changes_version_by_version
                of_two_jobs_with_triggers_that_saw_the_same_events_one_is_refused
                old_versions_of_a_job_are_removed
                a_job_is_paused_and_resumed
                a_deleted_job_is_hidden_and_keeps_its_numbers
                the_schedules_of_a_job_are_decided_once
                times_are_skipped_because_a_job_is_paused_only_while_it_is
                a_schedule_starts_a_run_only_from_the_current_decision
                the_work_of_a_run_that_another_server_has_started_is_refused
                a_job_needs_its_cluster_and_goes_with_it
                jobs_are_part_of_a_copy
            }
            backfills {
                a_backfill_is_read_back_whole
                a_backfill_and_its_run_are_created_together_or_not
                progress_of_a_backfill_is_recorded_once
                a_cancelled_backfill_starts_nothing_more
                only_the_last_ended_backfills_of_a_job_are_kept
                a_backfill_goes_with_its_cluster
                backfills_are_part_of_a_copy
            }
            deliveries {
                a_delivery_is_queued_once_and_read_back_whole
                a_run_and_its_delivery_are_created_together
                a_due_delivery_is_taken_by_one_server
                an_ended_delivery_is_tried_again_only_on_request
                due_deliveries_are_read_in_order
                deliveries_are_listed_newest_first_by_filter
                deliveries_go_with_their_run
                the_newest_deliveries_of_a_cluster_are_kept
                a_delivery_needs_its_cluster_and_goes_with_it
                deliveries_are_part_of_a_copy
            }
            contents {
                large_contents_are_read_back_whole
                contents_remain_while_something_refers_to_them
                parts_of_a_snapshot_are_small_though_contents_are_large
            }
            output {
                output_is_read_back_in_order_from_an_offset
                a_chunk_that_was_sent_before_is_dropped
                output_of_an_unknown_execution_is_dropped
                the_tail_of_output_is_kept
                the_last_chunks_are_read_in_order
                output_may_hold_any_text
            }
            upkeep {
                a_server_takes_the_place_of_its_namesake
                pruning_removes_what_ended_before_and_nothing_else
                pruning_removes_so_many_runs_at_most
                a_time_in_the_future_keeps_no_other_event
                numbers_go_on_after_pruning
                the_volume_follows_every_write
                the_oldest_runs_beyond_a_number_are_removed
                events_up_to_a_number_are_removed_unless_they_are_young
                output_of_the_oldest_runs_is_removed_and_the_runs_stay
                what_is_larger_than_a_batch_is_removed_whole
                a_closed_store_is_unavailable_or_unharmed
            }
            debug {
                debug_commands_have_a_list_of_their_own
                debug_commands_use_no_room_and_no_turn
                debug_commands_are_not_counted_as_runs
                a_debug_command_reaches_a_held_node_and_keeps_nobody_from_it
                ended_debug_commands_are_removed_before_other_runs
                debug_commands_are_not_among_the_runs_beyond_a_number
            }
            copies {
                a_snapshot_is_all_there_is
                a_large_snapshot_comes_in_parts
                a_snapshot_is_consistent
                a_snapshot_that_nobody_takes_is_broken_off
                what_is_kept_begins_where_pruning_ended
                presence_says_when_each_session_was_seen
                output_of_several_executions_is_read_at_once
            }
        }
    };
}

/// The same for stores that can be a copy: the field `store` is a [`Replica`](crate::Replica).
#[macro_export]
macro_rules! replica_suite {
    ($fresh:ident) => {
        $crate::conformance_cases! { $fresh;
            replicas {
                a_copy_takes_the_place_of_everything
                a_copy_that_does_not_end_changes_nothing
                events_are_applied_with_their_numbers_and_servers
                events_go_on_where_a_copy_ended
                a_refused_event_diverges_and_leaves_no_trace
                a_gap_and_an_event_seen_before_diverge
                what_the_primary_forgot_is_forgotten
                output_that_the_primary_removed_is_removed
                old_executions_of_standing_tasks_are_removed_as_in_the_primary
                a_copy_follows_clusters_to_their_end
                events_of_a_removed_cluster_are_applied
                a_copy_follows_jobs
                heartbeats_are_taken_for_the_current_session
                servers_are_those_that_were_set_last
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($fresh:ident; $($module:ident { $($case:ident)+ })+) => {
        $(mod $module {
            $(#[tokio::test]
            async fn $case() {
                let fresh = super::$fresh().await;
                $crate::conformance::$module::$case(std::sync::Arc::clone(&fresh.store)).await;
                fresh.done().await;
            })+
        })+
    };
}

/// Returns all cases as a list of futures, to run them in one test.
#[macro_export]
macro_rules! conformance_futures {
    ($fresh:ident) => {
        $crate::conformance_suite! { $fresh, conformance_list }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_list {
    ($fresh:ident; $($module:ident { $($case:ident)+ })+) => {{
        let cases: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> = vec![$($(Box::pin(async {
            let fresh = $fresh().await;
            $crate::conformance::$module::$case(std::sync::Arc::clone(&fresh.store)).await;
            fresh.done().await;
        }),)+)+];
        cases
    }};
}
