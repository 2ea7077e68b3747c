//! Owns every bound of the product that is not a setting: its name, its number and the reason for it.

/// The stored jobs of a cluster. Servers have all of them in memory.
pub const JOBS: usize = 20_000;

/// The versions of a stored job that are kept.
pub const JOB_VERSIONS: u64 = 100;

/// The times of one backfill: more are several years of a daily job, or a mistake.
pub const BACKFILL_TIMES: usize = 10_000;

/// The runs of a backfill that are open at once. Its row has their times.
pub const BACKFILL_PARALLEL: u32 = 100;

/// The backfills of a job that are open at once.
pub const BACKFILLS_OPEN: usize = 10;

/// The backfills of a job that are kept: ended ones beyond the last so many are removed.
pub const BACKFILLS: usize = 100;

/// A job file: larger ones are generated, and should be split into several jobs.
pub const JOB_FILE_BYTES: usize = 1024 * 1024;
/// The params of one task, aliases expanded: they are sent to the node in one message.
pub const PARAMS_BYTES: usize = 1024 * 1024;
/// The params of all tasks of a job together, aliases expanded: they are stored with the run.
pub const PARAMS_OF_JOB_BYTES: usize = 8 * 1024 * 1024;
/// The name of a cluster: it is part of lines and ids.
pub const CLUSTER_NAME_BYTES: usize = 128;
/// The description of a cluster: some lines for people.
pub const CLUSTER_DESCRIPTION_BYTES: usize = 4 * 1024;
/// Clusters of one store: every server keeps all of them in memory.
pub const CLUSTERS: usize = 10_000;
/// Standing tasks of one cluster: each change of the list is an event with the whole list.
pub const STANDING_TASKS: usize = 1_000;
/// The whole list of standing tasks, as JSON.
pub const STANDING_LIST_BYTES: usize = 1024 * 1024;
/// The name of a standing task, in characters.
pub const STANDING_NAME_CHARS: usize = 200;
/// The minimum timeout of a standing task, in seconds. Maximum and default are those of every task.
pub const STANDING_TIMEOUT_LEAST_S: u64 = 10;
/// Nodes that one request to do a standing task again may name: each is an event with the whole list.
pub const RERUN_NODES: usize = 100;
/// The lists that one such request commits at once: others wait for the commit.
pub const LISTS_PER_COMMIT_BYTES: usize = 4 * 1024 * 1024;
/// Standing tasks on nodes that one page shows: a few MiB as JSON.
pub const CELLS_PER_PAGE: usize = 250_000;
/// Work in one response to a poll, unless one piece of work is larger. The rest is sent in the next response. Over a
/// slow line a node waits for a whole response before it starts any of the work.
pub const POLL_RESPONSE_BYTES: usize = 1024 * 1024;
/// Work in one response to a report. More of it waits for the poll: the deadline of a report allows for small responses.
pub const REPORT_RESPONSE_BYTES: usize = 16 * 1024;
/// A URL of a hook or of a message.
pub const URL_BYTES: usize = 2 * 1024;
/// The body of a message, as JSON: it is stored with its delivery.
pub const MESSAGE_BODY_BYTES: usize = 64 * 1024;
/// How long one try of a message may take, in seconds: default and maximum. It has its place among the calls that a server
/// makes at once until then.
pub const MESSAGE_TIMEOUT_DEFAULT_S: u64 = 10;
pub const MESSAGE_TIMEOUT_MOST_S: u64 = 60;
/// The recipients of one e-mail.
pub const EMAIL_RECIPIENTS: usize = 50;
/// Deliveries of one cluster that are kept: the newest. They are removed with their run, or when there are more.
pub const DELIVERIES: u32 = 10_000;
/// Schedules of one job: each has its entry in every server's timer.
pub const SCHEDULES_PER_JOB: usize = 32;
/// A cron expression: a longer one is a mistake.
pub const CRON_BYTES: usize = 256;
/// Dates that one schedule leaves out: each search compares all of them with each day.
pub const EXCLUDED_DATES: usize = 366;
/// The longest jitter of a schedule, in seconds: a search looks at all times of that span.
pub const JITTER_MOST_S: u64 = 3600;
/// The longest delay after which a missed start is caught up, in seconds.
pub const CATCH_UP_MOST_S: u64 = 30 * 24 * 3600;
/// Steps in one run.
pub const STEPS_PER_RUN: usize = 10_000;
/// Step instances (step × node) in one run: one run actor keeps them in memory, about 100 bytes each.
pub const INSTANCES_PER_RUN: usize = 1_000_000;
/// Executions that one commit of a run adds or changes, and their params and reused outputs, unless one execution has
/// more: a run that skips a million instances is many small commits, so that others need not wait.
pub const EXECUTIONS_PER_COMMIT: usize = 1_000;
pub const PARAMS_PER_COMMIT_BYTES: usize = 1024 * 1024;
/// The evaluated params of all executions of one run: they are stored, sent to replicas, and kept by the run's owner.
pub const PARAMS_OF_RUN_BYTES: usize = 256 * 1024 * 1024;
/// The outputs of one run that its expressions refer to: the run's owner keeps them until the run ends. Beyond it, those of
/// the steps with the most are dropped, and what refers to them fails. Other outputs are only stored.
pub const OUTPUTS_OF_RUN_BYTES: usize = 64 * 1024 * 1024;
/// The default for the nodes of one cluster that are not offline: a server keeps about 30 KiB of each in memory.
pub const NODES_DEFAULT: usize = 10_000;
/// The description of one node, as JSON: a server keeps thousands of them.
pub const DESCRIPTION_BYTES: usize = 256 * 1024;
/// Parts of a node's description.
pub const GROUPS_PER_NODE: usize = 64;
pub const LABELS_PER_NODE: usize = 64;
pub const CAPABILITIES_PER_NODE: usize = 64;
pub const BACKENDS_PER_NODE: usize = 64;
/// The value of a label or a capability, and a help text: one line for people.
pub const NODE_TEXT_BYTES: usize = 1024;
/// Placed executions that one node runs at once: each may be a process with three open files on the host.
pub const SLOTS_PER_NODE: u32 = 1_024;
/// Facts in one report of an agent.
pub const LISTED_PER_MESSAGE: usize = 4_096;
/// Leases in one message of an agent: results of former sessions, results on their way, running work, and work that
/// waits for its slots.
pub const HELD_PER_MESSAGE: usize = UNDELIVERED + 4 * SLOTS_PER_NODE as usize;
/// Chunks of output in one message: agents collect them by bytes, so that a message may contain many tiny ones.
pub const CHUNKS_PER_MESSAGE: usize = 65_536;
/// The size from which equal definitions, targets and descriptions of nodes are stored once. A smaller text takes less
/// than a reference to it, with its place in an index.
pub const SHARED_CONTENT_BYTES: usize = 1024;
/// Output kept of one execution; the tail is kept.
pub const OUTPUT_BYTES: usize = 1024 * 1024;
/// One stored piece of output. Small enough that dropping whole pieces keeps the tail close to its bound.
pub const OUTPUT_CHUNK_BYTES: usize = 16 * 1024;
/// Pieces of output that pruning removes in one transaction, 8 MiB at most: commits wait for it on SQLite.
pub const OUTPUT_PRUNED_CHUNKS: u32 = 512;
/// Rows that cleaning removes in one transaction, and their bytes, unless one row has more: about 10 ms of the writer's time.
pub const PRUNED_ROWS: usize = 1_000;
pub const PRUNED_BYTES: usize = 4 * 1024 * 1024;
/// The share of the writer's time that cleaning takes, in percent, and its longest pause, in seconds.
pub const PRUNING_PERCENT: u32 = 5;
pub const PRUNING_PAUSE_MOST_S: u64 = 60;
/// How long runs and events are kept however few may be kept, in seconds: servers and replicas read each other's events, also
/// after an outage, and people look at runs that have just ended.
pub const RETENTION_LEAST_S: i64 = 3_600;
/// The smallest setting for the number of kept events: a replica or a live page that is further behind starts over.
pub const EVENTS_KEPT_LEAST: u64 = 100_000;
/// How often a server measures what the store holds, and over which time growth is measured at least, in seconds.
pub const MEASURED_EVERY_S: u64 = 60;
pub const GROWTH_LEAST_S: u64 = 60;
/// The smallest setting for the kept output of one execution: less could not hold one line of an error.
pub const OUTPUT_LEAST_BYTES: u64 = 1024;
/// The minimum interval of heartbeats: with a shorter one a server would do nothing else.
pub const HEARTBEAT_LEAST_MS: u64 = 100;
/// A node may miss a heartbeat: it counts as silent after this many intervals at the earliest.
pub const SILENCE_LEAST_INTERVALS: u32 = 2;
/// Output of ended work that an agent has not delivered: at this amount the node takes no new work, so that a slow
/// line fills neither its memory nor its disk.
pub const UNSENT_BYTES: usize = 32 * OUTPUT_BYTES;
/// Results that an agent has not delivered: at this number the node takes no new work. With two leases per slot it
/// lists at most 4,096, which is the maximum for servers of older releases.
pub const UNSENT_RESULTS: usize = 2_000;
/// One gRPC message.
pub const MESSAGE_BYTES: usize = 10 * 1024 * 1024;
/// Connections to the agents' port: so many for each node of a full cluster, one of them for output, and a reserve for
/// connections that come and go. One address may be a whole fleet behind a NAT, so it may have all except the reserve.
/// This machine may have all: `dev` and benches run thousands of agents.
pub const CONNECTIONS_PER_NODE: usize = 2;
pub const AGENT_CONNECTIONS_RESERVE: usize = 1_000;
/// Connections to the agents' port from one address, however few nodes there may be: some that were not closed properly
/// must not lock an agent out.
pub const AGENT_CONNECTIONS_PER_ADDRESS: usize = 64;
/// Bounds for one of these connections: the time until its first bytes and the time without a call, in seconds;
/// concurrent calls (an agent has up to eight); one frame and the headers of one call, which are kept in memory
/// completely before they are checked.
pub const AGENT_FIRST_BYTES_S: u64 = 5;
pub const AGENT_IDLE_S: u64 = 120;
pub const AGENT_STREAMS: u32 = 16;
pub const AGENT_FRAME_BYTES: u32 = 64 * 1024;
pub const AGENT_HEADER_BYTES: u32 = 8 * 1024;
/// How long the message of one call may take to arrive: this many seconds, plus one second for each `MESSAGE_BYTES_PER_S`.
pub const MESSAGE_S: u64 = 30;
pub const MESSAGE_BYTES_PER_S: usize = 16 * 1024;
/// Large messages that a server keeps in memory at once: of all connections, and of one. The first bytes of each
/// message do not count, so that a heartbeat or a poll always gets through.
pub const LARGE_MESSAGES_BYTES: usize = 256 * 1024 * 1024;
pub const LARGE_MESSAGES_PER_CONNECTION_BYTES: usize = 24 * 1024 * 1024;
pub const SMALL_MESSAGE_BYTES: usize = 64 * 1024;
/// The smallest response that is compressed: below it, the headers outweigh the gain.
pub const COMPRESSED_LEAST_BYTES: u64 = 1024;
/// Changes of one commit, for a request that changes many runs or nodes: others need not wait for all of them.
pub const CHANGES_PER_COMMIT: usize = 1_000;
/// Runs that one request retries: each is a new run with its own plan.
pub const RETRIES_AT_ONCE: u32 = 100;
/// Pages of a list that such a request reads to find its runs: tenths of a second.
pub const PAGES_SEARCHED: usize = 10;
/// Runs or nodes that the response to such a request names.
pub const NAMED_OF_MANY: usize = 100;
/// Rows on one page: the default, and the maximum.
pub const PAGE_DEFAULT: u32 = 100;
pub const PAGE_MOST: u32 = 1_000;
/// The executions on one page, as JSON, unless one has more: each may have large params and outputs. For runs of an older
/// release, the definitions that are read for one page.
pub const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Rows that a page may skip: skipped rows are read, too. A cursor skips none.
pub const OFFSET_MOST: u64 = 10_000;
/// Rows that a list reads for one page, or counts for its total: milliseconds. If the rows that match are rarer, a page
/// ends early and names the cursor of the next one; a larger total is unknown.
pub const ROWS_READ: u32 = 10_000;
/// The outputs of one execution.
pub const VALUES_BYTES: usize = 64 * 1024;
/// Names of jobs, tasks, groups, labels and hostnames.
pub const NAME_BYTES: usize = 253;
/// An error or reason that is kept with an execution.
pub const REASON_BYTES: usize = 4 * 1024;
/// The problems that an agent reports about its host: the number of texts, and the bytes of each.
pub const PROBLEMS_PER_NODE: usize = 8;
pub const PROBLEM_BYTES: usize = 512;
/// Results of former sessions that an agent may announce when it registers: they are stored with the node.
pub const UNDELIVERED: usize = 10_000;
/// The id of an agent's installation.
pub const INSTANCE_BYTES: usize = 64;
/// How long the tombstone of a deleted node is kept beyond the retention of runs. Until then its session gets the
/// reason when it calls, and its executions show its hostname.
pub const TOMBSTONE_DAYS: i64 = 30;
/// A debug command, and its default timeout in seconds.
pub const DEBUG_COMMAND_BYTES: usize = 64 * 1024;
pub const DEBUG_TIMEOUT_DEFAULT_S: u64 = 5 * 60;
/// How long a debug command waits for its node, in seconds, and how long it is kept after its end, in hours.
pub const DEBUG_WAIT_S: u64 = 3_600;
pub const DEBUG_KEPT_HOURS: i64 = 24;
/// Debug commands that one node runs at once, in addition to its other work: somebody watches each.
pub const DEBUG_PER_NODE: u32 = 4;
/// Debug commands of one cluster that have not ended: nothing else bounds them, because they wait for no admission.
pub const DEBUG_OPEN: usize = 1_000;
/// The maximum number of retries of a task, and of a whole run.
pub const RETRIES: u32 = 100;
/// A task's timeout: minimum, maximum and default, in seconds.
pub const TASK_TIMEOUT_LEAST_S: u64 = 1;
pub const TASK_TIMEOUT_MOST_S: u64 = 24 * 3600;
pub const TASK_TIMEOUT_DEFAULT_S: u64 = 30 * 60;
/// How long after a task's timeout its agent may report the end, in seconds; then the attempt is lost. Over the slowest
/// accepted line an agent needs this long to deliver all output that it may keep.
pub const REPORT_GRACE_S: u64 = (UNSENT_BYTES / MESSAGE_BYTES_PER_S) as u64;
/// The timeout of a whole run, if it has one: at most 30 days, in seconds.
pub const RUN_TIMEOUT_MOST_S: u64 = 30 * 24 * 3600;
/// The default for how long the `on_failure` steps of a run that timed out may take, in seconds.
pub const CLEANUP_TIMEOUT_DEFAULT_S: u64 = 10 * 60;
/// The default for how long a placed task waits while no node fits it, in seconds.
pub const PLACEMENT_TIMEOUT_DEFAULT_S: u64 = 30 * 60;
/// Items of one `for_each`.
pub const ITEMS: usize = 10_000;
/// Limits of one task.
pub const LIMITS_PER_TASK: usize = 16;
/// The maximum number of a limit, and the longest time that a rate may count over, in seconds: each start within
/// that time is a row until the time is over.
pub const LIMIT_MOST: u32 = 100_000;
pub const RATE_MOST_S: u64 = 24 * 3600;
/// Preferences of one placement, and the weight of one.
pub const PREFERENCES: usize = 32;
pub const WEIGHT_MOST: u32 = 100;
/// How often a step is sent again after its lease was lost.
pub const RESENDS_AFTER_LOSS: u32 = 3;
/// The maximum nesting of params, and the maximum number of values in a job file: a bound on hostile input.
pub const NESTING_DEPTH: usize = 32;
pub const JOB_FILE_VALUES: usize = 500_000;
/// A selector: longer ones enumerate nodes, and should use a group or a label.
pub const SELECTOR_BYTES: usize = 4 * 1024;
/// Problems that are listed for one job file; more would be noise.
pub const PROBLEMS_LISTED: usize = 100;
/// One expression in a task's params, the nesting of its brackets and the number of its parts: enough for people, and
/// small enough for the stack and the memory.
pub const EXPRESSION_BYTES: usize = 1024;
pub const EXPRESSION_DEPTH: usize = 16;
pub const EXPRESSION_TOKENS: usize = 200;
/// Steps of the machine that evaluates one expression.
pub const EXPRESSION_FUEL: u64 = 10_000;
/// Expressions in the params of one task.
pub const EXPRESSIONS_PER_TASK: usize = 1_000;
/// Pieces that `split` may create from a text.
pub const SPLIT_PIECES: usize = 10_000;
/// Values that one task declares as its outputs.
pub const OUTPUTS_PER_TASK: usize = 64;
/// Sizes that a roll-out lists for its waves.
pub const BATCH_AMOUNTS: usize = 100;
/// One argument of a program: the kernel allows 128 KiB including the final NUL. Some room is left for a prefix from a
/// template, such as `--level=`.
pub const ARGUMENT_BYTES: usize = 127 * 1024;
/// The texts of one list or map, each counted with its NUL and its pointer: the kernel allows 2 MiB of arguments and
/// environment together, and a task has at most three of them.
pub const ARGUMENTS_BYTES: usize = 512 * 1024;
/// A path, and one name in it: the kernel's own bounds.
pub const PATH_BYTES: usize = 4095;
/// A param's pattern, as text and compiled: nodes declare them, and a server keeps those of thousands of nodes.
pub const PATTERN_BYTES: usize = 1024;
pub const PATTERN_COMPILED_BYTES: usize = 1024 * 1024;
/// Connections to the REST port: in total, from one address, and from this machine itself. An idle one takes about
/// 26 KiB; a script or a dashboard needs a few, a proxy hundreds.
pub const HTTP_CONNECTIONS: usize = 4_096;
pub const HTTP_CONNECTIONS_PER_ADDRESS: usize = 512;
pub const HTTP_CONNECTIONS_LOOPBACK: usize = 3_072;
/// How long a new connection may send nothing, and how long the header of one request may take, in seconds. An idle
/// HTTP/1 connection is closed after the second as well.
pub const FIRST_BYTES_S: u64 = 10;
pub const HTTP_HEADER_S: u64 = 10;
/// The header of one request.
pub const HTTP_HEADER_BYTES: usize = 64 * 1024;
/// Concurrent requests on one HTTP/2 connection, and one frame, which is kept in memory completely.
pub const HTTP_STREAMS: u32 = 100;
pub const HTTP_FRAME_BYTES: u32 = 64 * 1024;
/// How long the body of one request may take: this many seconds, plus one second for each `HTTP_BODY_BYTES_PER_S`.
pub const HTTP_BODY_S: u64 = 30;
pub const HTTP_BODY_BYTES_PER_S: usize = 16 * 1024;
/// Request bodies in a server's memory at once, of all connections. Bodies up to `SMALL_MESSAGE_BYTES` do not count.
pub const HTTP_BODIES_BYTES: usize = 64 * 1024 * 1024;
/// Plans and large job files that are processed at once, and how many more may wait: each uses a processor for up to
/// seconds and up to hundreds of megabytes.
pub const PLANS_AT_ONCE: usize = 2;
pub const PLANS_WAITING: usize = 32;
/// Views of large runs that are made at once: each has up to a million instances in memory. As many more may wait as
/// plans.
pub const LARGE_VIEWS_AT_ONCE: usize = 2;
/// Plans of up to this many instances are compiled immediately, without waiting for a slot.
pub const PLAN_SMALL_INSTANCES: usize = 10_000;
/// Committed events that are kept for slow readers, as JSON; in memory they take a few times as much. A reader that is
/// further behind reads from the store.
pub const FEED_BYTES: usize = 16 * 1024 * 1024;
/// Submissions in one transaction, and their bytes as JSON, unless one has more: others wait for its end.
pub const COMMIT_SUBMISSIONS: usize = 1_024;
pub const COMMIT_BYTES: usize = 8 * 1024 * 1024;
/// Events that are read from the store at once, and their bytes as JSON, unless one has more. Each reader keeps what it
/// has read in memory until it was sent. A page of events has the same bound in bytes.
pub const EVENTS_AT_ONCE: usize = 500;
pub const EVENTS_AT_ONCE_BYTES: usize = 2 * 1024 * 1024;
/// One part of a snapshot for a replica, and the rows or events in one line to it, unless one row has more.
pub const REPLICA_PART_BYTES: usize = 4 * 1024 * 1024;
/// One line to a replica. The largest row is a run with a full job file and its plan: 8 MiB of params and a million
/// instances, and JSON may need six bytes for one.
pub const REPLICA_LINE_BYTES: usize = 64 * 1024 * 1024;
/// The slowest a replica may read a snapshot, on average, after its first minute: each snapshot uses a connection of
/// the store.
pub const SNAPSHOT_BYTES_PER_S: u64 = 128 * 1024;
/// Runs of an older release whose rows are completed in one transaction, and the bytes that are read for it, unless one
/// run has more: commits wait for it on SQLite.
pub const RUNS_COMPLETED: usize = 100;
pub const RUNS_COMPLETED_BYTES: usize = 1024 * 1024;
/// Failed instances of a run whose last line of standard error is shown, how many of their last output chunks are
/// searched for it, and how much of it is shown.
pub const LAST_LINES_SHOWN: usize = 10;
pub const LAST_LINE_CHUNKS: u32 = 8;
pub const LAST_LINE_CHARS: usize = 200;
/// The output of a run's executions is merged line by line: a longer line may be divided if very many executions have a
/// line without an end, because all of these lines are kept in memory.
pub const MERGED_LINE_LEAST_BYTES: usize = 1024;
/// Changes in one frame of the live stream: about a megabyte.
pub const FRAME_CHANGES: usize = 10_000;
/// Events that the live stream replays: a client that is further behind reads everything again, which is faster.
pub const LIVE_REPLAYED: u64 = 50_000;
/// Statistics of a cluster in a server's memory: minutes in which runs ended (a week), jobs, steps of each job, the last
/// durations of each job and step, and the runs that a server reads when it starts. Together about 12 MB at most.
pub const STATS_MINUTES: usize = 7 * 24 * 60;
pub const STATS_JOBS: usize = 1_000;
pub const STATS_STEPS: usize = 100;
pub const STATS_DURATIONS: usize = 31;
pub const STATS_RUNS_READ: u32 = 2_000;
/// How long a step waits for its approval, unless the job file sets it.
pub const APPROVAL_TIMEOUT_DEFAULT_S: u64 = 24 * 3600;
/// The bytes of the message of an approval, and of the reason of a decision.
pub const APPROVAL_TEXT_BYTES: usize = 1_000;
/// Jobs of all clusters that have their own series in the metrics of a server.
pub const JOBS_MEASURED: usize = 100;
/// Failed instances of a run that are grouped by like errors: each needs a read of its output.
pub const FAILURES_EXAMINED: usize = 500;
/// Queries of users that a server runs at once, and how long one may take or wait for its turn, in seconds. They use
/// their own connections to the store: what keeps the server alive does not wait for them.
pub const VIEWS_AT_ONCE: usize = 4;
pub const VIEW_S: u64 = 10;
/// How many nodes an answer names of a group that it counts.
pub const NODES_NAMED: usize = 20;
/// How many nodes are named that do not run a pending execution for the same reason.
pub const NODES_PER_REASON: usize = 3;
/// Pending instances of a step whose wait is explained in one response: each one needs a look at the board.
pub const WAITS_EXPLAINED: usize = 200;
/// A run of up to this many instances is counted whenever a list shows it, and nothing is kept for it: counting a page of
/// 1,000 such runs takes milliseconds, and most runs are small.
pub const COUNTED_IN_LISTS: u64 = 32;
/// Ended runs of older programs that are counted in one go, so that their counts are kept.
pub const RUNS_COUNTED_AT_ONCE: u32 = 100;
/// Executions of a run that are read at once to retry it: each may have large params and outputs.
pub const RETRY_READ: u32 = 500;
/// A page of results ends before it exceeds this: outputs and errors are part of it.
pub const RESULTS_PAGE_BYTES: usize = 4 * 1024 * 1024;
/// How many large runs a server remembers the counts of.
pub const COUNTS_KEPT: usize = 64;
/// Nodes in one matrix: the default, and the maximum.
pub const MATRIX_NODES_DEFAULT: u32 = 1_000;
pub const MATRIX_NODES_MOST: u32 = 10_000;
/// Cells in one matrix, a letter each, and with times. The matrix of a run with more steps has fewer nodes.
pub const MATRIX_CELLS: usize = 1_000_000;
pub const MATRIX_TIMES: usize = 200_000;
/// How long a hook may take, in seconds: the default, and the maximum.
pub const HOOK_TIMEOUT_DEFAULT_S: u64 = 10;
pub const HOOK_TIMEOUT_MOST_S: u64 = 5 * 60;
/// The headers that a hook may have, and the bytes of their values.
pub const HOOK_HEADERS: usize = 20;
pub const HEADER_BYTES: usize = 4_000;
/// The actions on one occasion.
pub const ACTIONS: usize = 10;
/// Runs of a job that may be active at once, at most.
pub const CONCURRENT_RUNS_MOST: u32 = 10_000;
/// How often the constraints of a run are checked before it is given up: a run that waits is checked again when another
/// run ends, which is the order of a queue, or after a delay.
pub const CHECKS_PER_RUN: u32 = 1_000;
/// How long a run waits for another run of its job before it looks again, and before it calls a hook again, in seconds.
pub const LOOK_AGAIN_S: u64 = 60;
/// Ended runs of a job that are read to find the last one that started.
pub const PREVIOUS_RUNS_READ: u32 = 1_000;
/// The bytes of a message about a constraint or an action.
pub const LIFE_TEXT_BYTES: usize = 1_000;
/// Triggers of one job: each has its entry in every server's index.
pub const TRIGGERS_PER_JOB: usize = 32;
/// How long a signature of a request is remembered, and how far the time that it signs may be from now, in seconds.
pub const HOOK_WINDOW_S: i64 = 5 * 60;
/// The secret of an HTTP trigger. A shorter one could be guessed; a longer one is not a secret but another file.
pub const HOOK_SECRET_LEAST_BYTES: usize = 16;
pub const HOOK_SECRET_BYTES: usize = 4 * 1024;
/// Runs that start each other, one after the other, by triggers. A longer chain is a circle that nobody noticed.
pub const TRIGGER_DEPTH: u32 = 16;
