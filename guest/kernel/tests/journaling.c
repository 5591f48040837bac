// SPDX-License-Identifier: GPL-2.0
/*
 * journaling: the journaling mode of files and folders of vext4.
 *
 *   journaling get PATH...
 *   journaling set default|data|ordered PATH...
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "journaling_ioctl.h"

static const char * const names[] = { "default", "data", "ordered" };

int main(int argc, char **argv)
{
	int get = argc > 2 && !strcmp(argv[1], "get");
	int wanted = 0, failed = 0, at, fd, mode;

	if (!get) {
		if (argc < 4 || strcmp(argv[1], "set"))
			return 2;
		while (strcmp(names[wanted], argv[2]))
			if (++wanted == VEXT4_JOURNALING_MODES)
				return 2;
	}
	for (at = get ? 2 : 3; at < argc; at++) {
		fd = open(argv[at], O_RDONLY);
		mode = fd < 0 ? fd : get ? ioctl(fd, VEXT4_IOC_GET_JOURNALING, 0) :
					   ioctl(fd, VEXT4_IOC_SET_JOURNALING, wanted);
		if (mode < 0) {
			perror(argv[at]);
			failed = 1;
		} else if (get) {
			printf("%s\n", names[mode]);
		}
		if (fd >= 0)
			close(fd);
	}
	return failed;
}
