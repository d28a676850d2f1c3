/*-------------------------------------------------------------------------
 *
 * links.c
 *	  The network of a torture run: relays that can be cut, without root.
 *
 * Each link listens on its own loopback port and forwards to a server's Unix
 * socket.  Each line of input is a command, which is answered by one line:
 *
 *	  add NAME PATH		a new link; the answer is its port
 *	  cut NAME			a black hole: connections stay open, nothing passes
 *	  heal NAME			what was held back passes again
 *	  reset NAME		connections are reset; new ones are accepted
 *	  delay NAME MS		each piece is held back for that long
 *
 * It exits at the end of its input.
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PIECE 65536
#define NAME_SIZE 32

typedef struct Link
{
	struct Link *next;
	char		name[NAME_SIZE];
	struct sockaddr_un target;
	int			listener;
	bool		cut;
	int			delay_ms;
	struct Pair *pairs;
} Link;

/* One direction of a connection: what this side sends. */
typedef struct Side
{
	struct Pair *pair;
	int			fd;
	bool		connecting;
	bool		ended;			/* its peer has stopped sending */
	bool		told;			/* and the other side has been told */
	uint32_t	events;			/* that epoll looks for; 0: none */
	char	   *data;			/* on the way to the other side */
	size_t		len;
	size_t		sent;
	int64_t		due;			/* not before */
} Side;

typedef struct Pair
{
	struct Pair *next;
	Link	   *link;
	Side		sides[2];		/* client, server */
	bool		broken;
} Pair;


static int	epoll_fd;
static Link *links;

static int64_t
now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void *
allocate(size_t size)
{
	void	   *memory = calloc(1, size);

	if (memory == NULL)
		abort();
	return memory;
}

static Side *
other(Side *side)
{
	return &side->pair->sides[side == &side->pair->sides[0]];
}

/* With no events at all, epoll would still report errors again and again. */
static void
look_for(Side *side, uint32_t events)
{
	struct epoll_event event;

	if (events == side->events)
		return;
	event.events = events;
	event.data.ptr = side;
	if (epoll_ctl(epoll_fd, events == 0 ? EPOLL_CTL_DEL :
				  side->events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD,
				  side->fd, &event) != 0)
		abort();
	side->events = events;
}

static void
arrange(Pair *pair)
{
	for (int i = 0; i < 2; i++)
	{
		Side	   *side = &pair->sides[i];
		const Side *from = other(side);
		uint32_t	events = 0;

		if (!pair->link->cut)
		{
			if (side->connecting)
				events = EPOLLOUT;
			else
			{
				if (side->len == 0 && !side->ended)
					events |= EPOLLIN;
				if (from->len > 0 && from->due <= now_ms())
					events |= EPOLLOUT;
			}
		}
		look_for(side, events);
	}
}

static void
close_pair(Pair *pair, bool reset)
{
	for (int i = 0; i < 2; i++)
	{
		struct linger at_once = {1, 0};

		look_for(&pair->sides[i], 0);
		if (reset)
			setsockopt(pair->sides[i].fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
		close(pair->sides[i].fd);
		free(pair->sides[i].data);
	}
	for (Pair **at = &pair->link->pairs; *at != NULL; at = &(*at)->next)
		if (*at == pair)
		{
			*at = pair->next;
			break;
		}
	free(pair);
}

static void
take_in(Side *side)
{
	ssize_t		n = read(side->fd, side->data, PIECE);

	if (n > 0)
	{
		side->len = (size_t) n;
		side->sent = 0;
		side->due = now_ms() + side->pair->link->delay_ms;
	}
	else if (n == 0)
		side->ended = true;
	else if (errno != EAGAIN && errno != EINTR)
		side->pair->broken = true;
}

static void
pass_on(Side *from)
{
	Side	   *to = other(from);

	while (from->sent < from->len && from->due <= now_ms() && !to->connecting)
	{
		ssize_t		n = send(to->fd, from->data + from->sent, from->len - from->sent, MSG_NOSIGNAL);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n < 0)
		{
			from->pair->broken = true;
			return;
		}
		from->sent += (size_t) n;
	}
	if (from->sent == from->len)
		from->len = from->sent = 0;
	if (from->ended && from->len == 0 && !from->told && !to->connecting)
	{
		shutdown(to->fd, SHUT_WR);
		from->told = true;
	}
}

/* Continue with a connection, or end it. */
static void
advance(Pair *pair)
{
	pass_on(&pair->sides[0]);
	pass_on(&pair->sides[1]);
	if (pair->broken || (pair->sides[0].told && pair->sides[1].told))
		close_pair(pair, pair->broken);
	else
		arrange(pair);
}

static void
side_ready(Side *side, uint32_t events)
{
	if (side->connecting)
	{
		int			error = 0;
		socklen_t	size = sizeof(error);

		getsockopt(side->fd, SOL_SOCKET, SO_ERROR, &error, &size);
		side->connecting = false;
		if (error != 0)
			side->pair->broken = true;
	}
	else if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
	{
		if (side->len == 0 && !side->ended)
			take_in(side);
		else if (events & (EPOLLHUP | EPOLLERR))
			side->pair->broken = true;
	}
	advance(side->pair);
}

static void
welcome(Link *link)
{
	int			one = 1;
	int			fd = accept4(link->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	Pair	   *pair;

	if (fd < 0)
		return;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	pair = allocate(sizeof(Pair));
	pair->link = link;
	pair->next = link->pairs;
	link->pairs = pair;
	for (int i = 0; i < 2; i++)
	{
		pair->sides[i].pair = pair;
		pair->sides[i].data = allocate(PIECE);
	}
	pair->sides[0].fd = fd;
	pair->sides[1].fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (pair->sides[1].fd < 0)
		abort();
	if (connect(pair->sides[1].fd, (struct sockaddr *) &link->target, sizeof(link->target)) != 0)
	{
		if (errno == EINPROGRESS)
			pair->sides[1].connecting = true;
		else
			pair->broken = true;
	}
	advance(pair);
}

static void
listen_for(Link *link, bool yes)
{
	struct epoll_event event;

	event.events = EPOLLIN;
	event.data.ptr = link;
	if (epoll_ctl(epoll_fd, yes ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, link->listener, &event) != 0)
		abort();
}

static int
add_link(const char *name, const char *path)
{
	Link	   *link = allocate(sizeof(Link));
	struct sockaddr_in address;
	socklen_t	size = sizeof(address);

	snprintf(link->name, sizeof(link->name), "%s", name);
	link->target.sun_family = AF_UNIX;
	snprintf(link->target.sun_path, sizeof(link->target.sun_path), "%s", path);
	link->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	memset(&address, 0, sizeof(address));
	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (link->listener < 0 ||
		bind(link->listener, (struct sockaddr *) &address, sizeof(address)) != 0 ||
		listen(link->listener, 128) != 0 ||
		getsockname(link->listener, (struct sockaddr *) &address, &size) != 0)
		abort();
	link->next = links;
	links = link;
	listen_for(link, true);
	return ntohs(address.sin_port);
}

static void
set_cut(Link *link, bool cut)
{
	if (link->cut == cut)
		return;
	link->cut = cut;
	listen_for(link, !cut);
	for (Pair *pair = link->pairs, *next; pair != NULL; pair = next)
	{
		next = pair->next;
		if (cut)
			arrange(pair);
		else
			advance(pair);
	}
}

static void
obey(char *line)
{
	char		command[16] = "";
	char		name[NAME_SIZE] = "";
	char		rest[200] = "";
	Link	   *link;

	if (sscanf(line, "%15s %31s %199s", command, name, rest) < 2)
		printf("what?\n");
	else if (strcmp(command, "add") == 0)
		printf("%d\n", add_link(name, rest));
	else
	{
		for (link = links; link != NULL && strcmp(link->name, name) != 0; link = link->next)
			;
		if (link == NULL)
		{
			printf("no link %s\n", name);
			fflush(stdout);
			return;
		}
		if (strcmp(command, "cut") == 0)
			set_cut(link, true);
		else if (strcmp(command, "heal") == 0)
			set_cut(link, false);
		else if (strcmp(command, "delay") == 0)
			link->delay_ms = atoi(rest);
		else if (strcmp(command, "reset") == 0)
			while (link->pairs != NULL)
				close_pair(link->pairs, true);
		else
		{
			printf("what?\n");
			fflush(stdout);
			return;
		}
		printf("ok\n");
	}
	fflush(stdout);
}

/* Read commands; false at the end of the input. */
static bool
read_commands(void)
{
	static char buffer[4000];
	static size_t used;
	ssize_t		n = read(STDIN_FILENO, buffer + used, sizeof(buffer) - 1 - used);
	char	   *at = buffer;
	char	   *end;

	if (n <= 0)
		return n < 0 && (errno == EAGAIN || errno == EINTR);
	used += (size_t) n;
	buffer[used] = '\0';
	while ((end = strchr(at, '\n')) != NULL)
	{
		*end = '\0';
		obey(at);
		at = end + 1;
	}
	used -= (size_t) (at - buffer);
	memmove(buffer, at, used);
	return used < sizeof(buffer) - 1;
}

/* Send what is due now; returns when to look again, or -1. */
static int
held_back(void)
{
	int64_t		now = now_ms();
	int64_t		next = -1;

	for (Link *link = links; link != NULL; link = link->next)
		for (Pair *pair = link->pairs, *after; pair != NULL && !link->cut; pair = after)
		{
			bool		due = false;

			after = pair->next;
			for (int i = 0; i < 2; i++)
			{
				const Side *side = &pair->sides[i];

				if (side->len == 0)
					continue;
				if (side->due > now)
					next = next < 0 || side->due < next ? side->due : next;
				else if (!(pair->sides[1 - i].events & EPOLLOUT))
					due = true;
			}
			if (due)
				advance(pair);
		}
	return next < 0 ? -1 : (int) (next - now);
}

/* Is it a link rather than a side? */
static Link *
link_of(const void *source)
{
	for (Link *link = links; link != NULL; link = link->next)
		if (link == source)
			return link;
	return NULL;
}

int
main(void)
{
	struct epoll_event event;

	signal(SIGPIPE, SIG_IGN);
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	event.events = EPOLLIN;
	event.data.ptr = NULL;
	if (epoll_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, STDIN_FILENO, &event) != 0)
		return 1;
	for (;;)
	{
		/* one at a time, because an event may close what another one is about */
		int			n = epoll_wait(epoll_fd, &event, 1, held_back());

		if (n < 0 && errno != EINTR)
			return 1;
		if (n <= 0)
			continue;
		if (event.data.ptr == NULL)
		{
			if (!read_commands())
				return 0;
		}
		else if (link_of(event.data.ptr) != NULL)
			welcome(link_of(event.data.ptr));
		else
			side_ready(event.data.ptr, event.events);
	}
}
