"""Metrics of what training processes do: NCCL, CUDA, waits, start-up, stacks, profiles, what jobs write of themselves.

The columns of a row are those of store/schema/catalogue.py.
"""

ROWS = """
nccl | comm | hex | text | none | 0 | 0 | - | identity of the communicator, the same on all its ranks
nccl | rank | number | gauge | none | 0 | 0 | - | rank of this process in the communicator
nccl | ranks | number | gauge | none | 0 | 0 | - | number of ranks of the communicator
nccl | pid | number | gauge | none | 0 | 0 | - | process, as the agent's PID namespace numbers it
nccl | operation | text | text | none | 0 | 0 | - | last operation enqueued: kind:datatype:count
nccl | operations_total | operations | counter | both | 2 | 0.1 | - | operations enqueued | operations_per_second
nccl | bytes_total | bytes | counter | both | 1e6 | 0.1 | - | payload of the operations enqueued, by this rank
nccl | counted_from | text | text | none | 0 | 0 | - | where operations_total begins: birth, memory (both comparable between ranks) or attach
nccl | unsized_total | operations | counter | none | 0 | 0 | - | operations of a datatype that is not known: bytes_total lacks theirs
nccl | groups_total | groups | counter | none | 0 | 0 | - | ncclGroupStart calls of the process
nccl | groups_open | groups | gauge | none | 0 | 0 | - | groups begun and not ended: their operations are not launched yet
nccl | pending | 0 or 1 | gauge | none | 0 | 0 | - | whether the communicator has unfinished work
nccl | replayed | 0 or 1 | gauge | none | 0 | 0 | - | whether its transfers go on without calls: CUDA graphs replay them, operations_total stands
nccl | departs | 0 or 1 | gauge | none | 0 | 0 | - | whether one of the last calls of a process that calls no more differs from what always followed the two calls before it
nccl | idle_seconds | seconds | gauge | none | 0 | 0 | - | time since the last enqueue
nccl | iteration_seconds | seconds | gauge | high | 0.05 | 0.1 | - | inferred period of the operations | iteration_seconds
nccl | host_blocked_seconds_total | seconds | counter | both | 0.08 | 0.25 | - | time from a synchronize call behind an operation to the thread's next call | waiting_ratio | {} waiting for its communicators
nccl | active_ratio | ratio | gauge | both | 0.08 | 0.25 | - | share of samples with an operation in flight, waiting for other ranks included | active_ratio | collectives in flight {} of the time
nccl | send_pending_ratio | ratio | gauge | high | 0.15 | 0.3 | - | share of samples with a chunk handed to the network and not yet delivered | sending_ratio | chunks waiting on the network {} of the time
nccl | receive_pending_ratio | ratio | gauge | none | 0 | 0 | - | share of samples with a chunk awaited from the network for an operation that the GPU has come to, and none lying there for one that sends nothing
nccl | unsent_ratio | ratio | gauge | none | 0 | 0 | - | share of samples with a chunk that the GPU has made ready, and nothing has moved since the sample before
nccl | steps_posted_total | steps | counter | none | 0 | 0 | - | buffers offered to the GPU for chunks to send, since the agent first saw each connection
nccl | steps_transmitted_total | steps | counter | none | 0 | 0 | - | chunks handed to the network, since then
nccl | steps_done_total | steps | counter | both | 10 | 0.1 | - | chunks sent and through, since then
nccl | steps_received_total | steps | counter | none | 0 | 0 | - | chunks that came from the network, since then
nccl | step | steps | gauge | none | 0 | 0 | - | chunks sent and through when last seen, since the connections were made: the same on ranks of a ring that are equally far
nccl | waits_to_send_to | number | gauge | none | 0 | 0 | - | rank to which a chunk was handed to the network and is not through; of several the least advanced; -1: none
nccl | waits_to_receive_from | number | gauge | none | 0 | 0 | - | rank from which a chunk is awaited; of several the least advanced; -1: none
nccl | waits_for_gpu | 0 or 1 | gauge | none | 0 | 0 | - | whether a transfer is at work, the network has nothing to do for it, and the GPU is not known to have data ready
nccl | waits_for_credit_from | number | gauge | none | 0 | 0 | - | rank for which the GPU has a chunk ready that the network does not accept: it gives no credit; of several the least advanced; -1: none
nccl | waits_channel | number | gauge | none | 0 | 0 | - | channel of the transfer that waits for the network; null: none waits
nccl | waits_net_device | number | gauge | none | 0 | 0 | - | network device of that transfer, by its number in NCCL's own list
nccl | still_seconds | seconds | gauge | none | 0 | 0 | - | for how long no transfer at work has moved; 0: none is at work, or they move
nccl | lost_total | readings | counter | none | 0 | 0 | - | probe hits that could not be counted for this process
cuda | pid | number | gauge | none | 0 | 0 | - | process, as the agent's PID namespace numbers it
cuda | launches_total | calls | counter | both | 50 | 0.2 | - | kernels launched through libcudart
cuda | graph_launches_total | calls | counter | both | 5 | 0.2 | - | CUDA graphs launched
cuda | synchronize_calls_total | calls | counter | none | 0 | 0 | - | synchronize calls
cuda | synchronize_seconds_total | seconds | counter | both | 0.08 | 0.25 | - | time from a synchronize call to the thread's next probed call | - | {} waiting for its GPU
cuda | copy_bytes_total | bytes | counter | both | 1e7 | 0.2 | - | bytes copied
cuda | allocated_bytes | bytes | gauge | none | 0 | 0 | - | device memory asked for since the start, what was freed included
cuda | gc_pauses_total | pauses | counter | high | 0.5 | 1.0 | local | garbage collections of CPython
cuda | gc_seconds_total | seconds | counter | high | 0.03 | 0.5 | local | time in garbage collection | - | {} collecting garbage
cuda | sampled_ratio | ratio | gauge | none | 0 | 0 | - | share of the time in which the probes were on; for the rest their counts are estimated
cuda | startup_phase | text | text | none | 0 | 0 | - | how far the process has come since its start
process | cpu_wait_seconds_total | seconds | counter | high | 0.2 | 0.5 | local | time threads of the GPU's processes were ready to run and had no CPU, added up | - | {} waiting for a CPU, its threads added up
process | disk_wait_seconds_total | seconds | counter | high | 0.2 | 0.5 | local | time threads of the GPU's processes waited for disks and network file systems, added up | - | {} waiting for disks, its threads added up
process | tcp_retransmit_segments_total | segments | counter | high | 20 | 1.0 | - | TCP segments that the GPU's processes had to send again
startup | image_seconds | seconds | gauge | none | 0 | 0 | - | from the creation of its pod's cgroup until that of its container's: image pull and sandbox
startup | container_seconds | seconds | gauge | none | 0 | 0 | - | from the creation of its cgroup until the first process of the job in it
startup | launch_seconds | seconds | gauge | none | 0 | 0 | - | from the first process of the job in its cgroup until its own start: entry point, installation, launcher
startup | pid | number | gauge | none | 0 | 0 | - | process, as the agent's PID namespace numbers it
startup | start_time_seconds | seconds | gauge | none | 0 | 0 | - | when the process started, Unix time
startup | cuda_loaded_seconds | seconds | gauge | none | 0 | 0 | - | from its start until libcudart was seen in its memory
startup | nccl_loaded_seconds | seconds | gauge | none | 0 | 0 | - | from its start until libnccl was seen in its memory
startup | checkpoint_read_seconds | seconds | gauge | none | 0 | 0 | - | time spent reading, between its libraries and its first operation
startup | checkpoint_read_bytes | bytes | gauge | none | 0 | 0 | - | bytes read in that time
startup | communicator_begun_seconds | seconds | gauge | none | 0 | 0 | - | from its start until it asked for its first communicator
startup | communicator_made_seconds | seconds | gauge | none | 0 | 0 | - | from its start until it had its first communicator, seen at its next call
startup | first_operation_seconds | seconds | gauge | none | 0 | 0 | - | from its start until its first operation
start | job_name | text | text | none | 0 | 0 | - | name of its job, as in the table job
stack | pid | number | gauge | none | 0 | 0 | - | process, as the agent's PID namespace numbers it
stack | round | number | gauge | none | 0 | 0 | - | which of the rounds of an order it is of, from 1; null: taken of a process that was stalled
stack | form | text | text | none | 0 | 0 | - | what was read: python (frames of the interpreter), kernel (what the kernel tells of threads) or none
stack | stack | text | text | none | 0 | 0 | - | the process's first thread, one frame a line, the innermost first
stack | threads | text | text | none | 0 | 0 | - | its other threads, those alike together
stack | waits_in | text | text | none | 0 | 0 | - | what the kernel says its first thread is at
stack | still_seconds | seconds | gauge | none | 0 | 0 | - | for how long the process had asked for no operation
stack | error | text | text | none | 0 | 0 | - | why nothing better could be read
profile | pid | number | gauge | none | 0 | 0 | - | process, as the agent's PID namespace numbers it
profile | begin | nanoseconds | gauge | none | 0 | 0 | - | when the window began, as it was asked for
profile | seconds | seconds | gauge | none | 0 | 0 | - | length of the window
profile | late_seconds | seconds | gauge | none | 0 | 0 | - | how long after the window's begin the first sample was taken
profile | processes | number | gauge | none | 0 | 0 | - | processes of the machine in this window
profile | reader | text | text | none | 0 | 0 | - | what took the samples: py-spy, perf (functions on a CPU, native) or none
profile | functions | text | text | none | 0 | 0 | - | class and name of each function of the first thread, one a line
profile | series | text | text | none | 0 | 0 | - | the function of each sample, in order of time: its line from 0 on, and *N for N in a row
profile | cpu_seconds | seconds | gauge | none | 0 | 0 | - | CPU that sampling this process took
profile | error | text | text | none | 0 | 0 | - | why there are no samples, or none of py-spy
ras | comm | hex | text | none | 0 | 0 | - | identity of the communicator, as in nccl
ras | ranks | number | gauge | none | 0 | 0 | - | number of ranks of the communicator
ras | answered | number | gauge | none | 0 | 0 | - | ranks that answered
ras | missing | text | text | none | 0 | 0 | - | ranks that did not
ras | behind | text | text | none | 0 | 0 | - | ranks that launched fewer operations than the first
ras | failed | text | text | none | 0 | 0 | - | ranks with an error, or that were aborted
ras | version | text | text | none | 0 | 0 | - | NCCL's version
ras | collection_seconds | seconds | gauge | none | 0 | 0 | - | how long NCCL took to ask all ranks
ras | error | text | text | none | 0 | 0 | - | why there is no answer
task | task | text | text | none | 0 | 0 | - | which training task the machine works for; our agent leaves it to the table job
job_log | step | steps | gauge | none | 0 | 0 | - | the last step
job_log | step_seconds | seconds | gauge | none | 0 | 0 | - | time of a step: as the job says, else between steps
job_log | loss | number | gauge | none | 0 | 0 | - | the last loss
job_log | gradient_norm | number | gauge | none | 0 | 0 | - | the last gradient norm
job_log | nan_total | values | counter | none | 0 | 0 | - | losses and gradient norms that were no number
job_log | mfu_ratio | ratio | gauge | none | 0 | 0 | - | model FLOPs of a step over what the job's GPUs could do in its time
job_log | checkpoint_age_seconds | seconds | gauge | none | 0 | 0 | - | since the newest checkpoint was changed
job_log | skipped_bytes_total | bytes | counter | none | 0 | 0 | - | bytes of the log left out because too many came at once
job_log | error | text | text | none | 0 | 0 | - | why something could not be read
"""
