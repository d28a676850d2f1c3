/*-------------------------------------------------------------------------
 *
 * resolve.c
 *	  Looking up host names without blocking.
 *
 * getaddrinfo() may take very long while the network is down, which is just
 * when a lock must be given up in time.  So each lookup has a thread of its own,
 * which nobody has to wait for: a caller whose time is up abandons the job, and
 * the thread frees it when it is done.
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/util.h"
#include "net/conn.h"

struct DlockResolve
{
	pthread_mutex_t mutex;
	int			users;			/* the thread and the caller */
	int			fds[2];			/* the thread closes its end when it is done */
	char	   *host;
	char	  **addresses;
	int			naddresses;
	int			code;			/* of getaddrinfo() */
};

/* Is it a name, not an address or a directory of sockets? */
bool
dlock_resolve_needed(const char *host)
{
	struct in6_addr address;

	return host != NULL && host[0] != '\0' && host[0] != '/' && host[0] != '@' &&
		inet_pton(AF_INET, host, &address) != 1 &&
		inet_pton(AF_INET6, host, &address) != 1;
}

static void
leave(DlockResolve *job)
{
	int			users;

	pthread_mutex_lock(&job->mutex);
	users = --job->users;
	pthread_mutex_unlock(&job->mutex);
	if (users > 0)
		return;
	pthread_mutex_destroy(&job->mutex);
	for (int i = 0; i < job->naddresses; i++)
		free(job->addresses[i]);
	free(job->addresses);
	free(job->host);
	free(job);
}

static void
keep_addresses(DlockResolve *job, const struct addrinfo *list)
{
	int			n = 0;

	for (const struct addrinfo *a = list; a != NULL; a = a->ai_next)
		n++;
	job->addresses = calloc(n > 0 ? n : 1, sizeof(char *));
	for (const struct addrinfo *a = list; a != NULL && job->addresses != NULL;
		 a = a->ai_next)
	{
		char		text[NI_MAXHOST];

		if (getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof(text),
						NULL, 0, NI_NUMERICHOST) != 0)
			continue;
		job->addresses[job->naddresses] = strdup(text);
		if (job->addresses[job->naddresses] != NULL)
			job->naddresses++;
	}
}

static void *
resolver(void *arg)
{
	DlockResolve *job = arg;
	struct addrinfo hints;
	struct addrinfo *list = NULL;
	int			code;
	int			fd;

	memset(&hints, 0, sizeof(hints));
	hints.ai_family = AF_UNSPEC;
	hints.ai_socktype = SOCK_STREAM;
	code = getaddrinfo(job->host, NULL, &hints, &list);

	pthread_mutex_lock(&job->mutex);
	job->code = code;
	if (code == 0)
		keep_addresses(job, list);
	fd = job->fds[1];
	pthread_mutex_unlock(&job->mutex);

	if (list != NULL)
		freeaddrinfo(list);
	close(fd);
	leave(job);
	return NULL;
}

/* NULL: no memory, no thread or no descriptor. */
DlockResolve *
dlock_resolve_start(const char *host)
{
	DlockResolve *job = calloc(1, sizeof(DlockResolve));
	pthread_attr_t attr;
	pthread_t	thread;
	sigset_t	all;
	sigset_t	before;
	int			failed;

	if (job == NULL)
		return NULL;
	job->host = strdup(host);
	if (job->host == NULL || pipe2(job->fds, O_CLOEXEC | O_NONBLOCK) != 0)
	{
		free(job->host);
		free(job);
		return NULL;
	}
	pthread_mutex_init(&job->mutex, NULL);
	job->users = 2;

	/* leave signals to the threads of the program */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	failed = pthread_create(&thread, &attr, resolver, job);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &before, NULL);

	if (failed)
	{
		close(job->fds[0]);
		close(job->fds[1]);
		job->users = 1;
		leave(job);
		return NULL;
	}
	return job;
}

/* Readable when it is done. */
int
dlock_resolve_fd(const DlockResolve *job)
{
	return job->fds[0];
}

/*
 * Returns the number of addresses, or 0 and the reason in message.  Ends the
 * job.
 */
int
dlock_resolve_take(DlockResolve *job, char ***addresses, char *message, size_t size)
{
	int			n;

	pthread_mutex_lock(&job->mutex);
	n = job->naddresses;
	*addresses = job->addresses;
	job->addresses = NULL;
	job->naddresses = 0;
	if (n == 0)
	{
		snprintf(message, size, "could not translate host name \"%s\" to address: %s",
				 job->host, job->code != 0 ? gai_strerror(job->code) : "no address");
		free(*addresses);
		*addresses = NULL;
	}
	pthread_mutex_unlock(&job->mutex);
	dlock_resolve_abandon(job);
	return n;
}

void
dlock_resolve_abandon(DlockResolve *job)
{
	close(job->fds[0]);
	leave(job);
}
