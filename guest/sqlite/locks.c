// SPDX-License-Identifier: Apache-2.0
/*
 * locks EXTENSION DATABASE COMMAND: holds a database's write lock while a second connection of this process comes and goes,
 * then runs COMMAND, which is to find the database locked. Its status is the command's.
 */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

static void must(int status, sqlite3 *db)
{
	if (status == SQLITE_OK)
		return;
	fprintf(stderr, "%s\n", sqlite3_errmsg(db));
	exit(2);
}

int main(int argc, char **argv)
{
	sqlite3 *loads, *writes, *passes;
	int status;

	if (argc != 4)
		return 2;
	must(sqlite3_open(":memory:", &loads), loads);
	must(sqlite3_enable_load_extension(loads, 1), loads);
	must(sqlite3_load_extension(loads, argv[1], NULL, NULL), loads);
	must(sqlite3_close(loads), loads);
	must(sqlite3_open(argv[2], &writes), writes);
	must(sqlite3_exec(writes, "BEGIN IMMEDIATE", NULL, NULL, NULL), writes);
	must(sqlite3_open(argv[2], &passes), passes);
	must(sqlite3_exec(passes, "SELECT count(*) FROM t", NULL, NULL, NULL), passes);
	must(sqlite3_close(passes), passes);
	status = system(argv[3]);
	must(sqlite3_exec(writes, "COMMIT", NULL, NULL, NULL), writes);
	must(sqlite3_close(writes), writes);
	return status != 0;
}
