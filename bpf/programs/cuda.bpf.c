/*
 * libcudart's calls: synchronize calls always; launches, graph launches, copies and allocations where they are
 * attached.
 *
 * A function here has the name of the symbol it is attached to; `<name>_ptsz` forms share the program. Programs that
 * use the driver API or a static runtime are not seen: the counts are a lower bound.
 */
#include "common.bpf.h"

static __always_inline int synchronize(void)
{
	u64 id = caller(), now = bpf_ktime_get_ns();
	struct process *process;
	struct thread *thread = enter(id, now, &process, SYNCHRONIZE);
	struct slot *slot;

	if (!thread)
		return 0;
	ADD(process->synchronize_calls, 1);
	process->synchronize_since = now;
	thread->synchronize_at = now;
	thread->synchronizes = thread->behind;
	thread->behind = NONE;
	slot = slots.lookup(&thread->synchronizes);
	if (slot && slot->tgid == id >> 32)
		slot->blocked_since = now;
	return 0;
}

int cudaStreamSynchronize(struct pt_regs *ctx)
{
	return synchronize();
}

int cudaDeviceSynchronize(struct pt_regs *ctx)
{
	return synchronize();
}

int cudaEventSynchronize(struct pt_regs *ctx)
{
	return synchronize();
}

#define COUNT(name, group, field, amount)                                                                              \
	int name(struct pt_regs *ctx)                                                                                  \
	{                                                                                                              \
		struct process *process;                                                                               \
		u64 id = caller();                                                                                     \
                                                                                                                       \
		if (enter(id, bpf_ktime_get_ns(), &process, group))                                                    \
			ADD(process->field, amount);                                                                   \
		return 0;                                                                                              \
	}

COUNT(cudaLaunchKernel, LAUNCHES, launches, 1)
COUNT(cudaLaunchKernelExC, LAUNCHES, launches, 1)
COUNT(cudaGraphLaunch, GRAPHS, graph_launches, 1)
COUNT(cudaMemcpy, COPIES, copy_bytes, argument(ctx, 2))
COUNT(cudaMemcpyAsync, COPIES, copy_bytes, argument(ctx, 2))
COUNT(cudaMalloc, ALLOCATIONS, allocated_bytes, argument(ctx, 1))
COUNT(cudaMallocAsync, ALLOCATIONS, allocated_bytes, argument(ctx, 1))
