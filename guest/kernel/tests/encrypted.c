// SPDX-License-Identifier: GPL-2.0
/*
 * encrypted: folders whose files are encrypted, with a key that is always the same.
 *
 *   encrypted key DIR     the file system of DIR has the key from now on
 *   encrypted make DIR    and what is made in DIR, which is empty, is encrypted with it
 */
#include <fcntl.h>
#include <linux/fscrypt.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define KEY_BYTES 64

static int add_key(int fd, struct fscrypt_policy_v2 *policy)
{
	union {
		struct fscrypt_add_key_arg arg;
		unsigned char bytes[sizeof(struct fscrypt_add_key_arg) + KEY_BYTES];
	} key = { .arg.key_spec.type = FSCRYPT_KEY_SPEC_TYPE_IDENTIFIER, .arg.raw_size = KEY_BYTES };

	memset(key.bytes + sizeof(key.arg), 'k', KEY_BYTES);
	if (ioctl(fd, FS_IOC_ADD_ENCRYPTION_KEY, &key))
		return -1;
	memcpy(policy->master_key_identifier, key.arg.key_spec.u.identifier, FSCRYPT_KEY_IDENTIFIER_SIZE);
	return 0;
}

int main(int argc, char **argv)
{
	struct fscrypt_policy_v2 policy = {
		.version = FSCRYPT_POLICY_V2,
		.contents_encryption_mode = FSCRYPT_MODE_AES_256_XTS,
		.filenames_encryption_mode = FSCRYPT_MODE_AES_256_CTS,
		.flags = FSCRYPT_POLICY_FLAGS_PAD_32,
	};
	int fd;

	if (argc != 3 || (strcmp(argv[1], "key") && strcmp(argv[1], "make")))
		return 2;
	fd = open(argv[2], O_RDONLY | O_DIRECTORY);
	if (fd < 0 || add_key(fd, &policy) ||
	    (!strcmp(argv[1], "make") && ioctl(fd, FS_IOC_SET_ENCRYPTION_POLICY, &policy))) {
		perror(argv[2]);
		return 1;
	}
	return 0;
}
