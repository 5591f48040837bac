// SPDX-License-Identifier: Apache-2.0
//
// For LD_PRELOAD of a User Mode Linux kernel, on processors with AMX. A tracer sets the floating point state of a process as a whole or not at
// all (arch/x86/kernel/fpu/regset.c, xstateregs_set). With AMX that is longer than UML 6.1's buffer (arch/x86/um/ptrace_64.c), and UML
// ends at its first process: "ptrace set fp regs failed, errno 14". The rest of the state is given as unused here.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

// The state's header says which parts are in use (Intel SDM vol. 1, 13.4.2); those of AMX are 17 and 18.
#define XSTATE_BV 512
#define AMX (3ULL << 17)

typedef long ptrace_call(enum __ptrace_request request, ...);

static long set_whole(ptrace_call *next, pid_t pid, void *kind, const struct iovec *state)
{
	static __thread unsigned char whole[16384] __attribute__((aligned(64)));
	static size_t bytes;
	struct iovec given = { whole, sizeof(whole) };

	if (bytes == 0) {
		if (next(PTRACE_GETREGSET, pid, kind, &given) < 0)
			return -1;
		bytes = given.iov_len;
	}
	if (state->iov_len < XSTATE_BV + sizeof(uint64_t) || state->iov_len > bytes) {
		errno = EFAULT;
		return -1;
	}
	memset(whole, 0, bytes);
	memcpy(whole, state->iov_base, state->iov_len);
	*(uint64_t *)(whole + XSTATE_BV) &= ~AMX;
	given.iov_len = bytes;
	return next(PTRACE_SETREGSET, pid, kind, &given);
}

long ptrace(enum __ptrace_request request, ...)
{
	static ptrace_call *next;
	va_list rest;
	pid_t pid;
	void *address, *data;
	long result;

	if (!next)
		next = (ptrace_call *)dlsym(RTLD_NEXT, "ptrace");
	va_start(rest, request);
	pid = va_arg(rest, pid_t);
	address = va_arg(rest, void *);
	data = va_arg(rest, void *);
	va_end(rest);
	result = next(request, pid, address, data);
	if (result < 0 && errno == EFAULT && request == PTRACE_SETREGSET && (uintptr_t)address == NT_X86_XSTATE)
		result = set_whole(next, pid, address, data);
	return result;
}
