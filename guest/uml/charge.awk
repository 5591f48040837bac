# SPDX-License-Identifier: Apache-2.0
#
# Puts a fixed charge for each system call into a copy of arch/um/kernel/skas/syscall.c: awk -f charge.awk syscall.c >new
#
# These are our own lines; the kernel's stay in the distribution's package. The charge is the kernel argument syscall_ns=, and is taken
# where a call returns: the guest's clock moves on as if it had computed for so long. Fails where it does not know the file.
/^void handle_syscall/ {
	print "static unsigned long syscall_ns;"
	print "static int __init set_syscall_ns(char *s) { return kstrtoul(s, 0, &syscall_ns) == 0; }"
	print "__setup(\"syscall_ns=\", set_syscall_ns);"
	print ""
	begun = 1
}
{ print }
# Newer 6.1 sources, and older ones.
begun && (/PT_REGS_SET_SYSCALL_RETURN\(regs, ret\);/ || /EXECUTE_SYSCALL\(syscall, regs\)\);/) {
	print "\t\tif (syscall_ns && time_travel_mode == TT_MODE_EXTERNAL)"
	print "\t\t\ttime_travel_ndelay(syscall_ns);"
	charged++
}
END { exit charged != 1 }
