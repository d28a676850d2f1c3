/*-------------------------------------------------------------------------
 *
 * word.c
 *	  Sleeping until another thread changes a word.
 *
 * This is Linux's futex.  One call of the kernel wakes any number of threads, and
 * none of them needs a mutex to go on.  With condition variables, which have one,
 * a crowd that is woken queues for it, and each thread is switched to twice.
 *
 * Whoever wakes has changed the word before.  The word itself is not read any more,
 * so it may be gone by then, with the thread that slept on it.  A wakeup then comes
 * to nobody, or to whoever sleeps at that address now, so all who sleep look again
 * when they wake up.
 *
 * Other systems have the same here, made of condition variables.  So have those with
 * 32 bits, where the kernel's idea of a time is not always the library's.
 *
 *-------------------------------------------------------------------------
 */
#include <limits.h>

#if defined(__linux__) && ULONG_MAX > 0xffffffff && !defined(DLOCK_NO_FUTEX)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "word.h"

/* Unless the word has changed; for so long at most. */
void
dlock_word_sleep(int *word, int seen, int64_t ms)
{
	struct timespec ts = {.tv_sec = ms / 1000,.tv_nsec = ms % 1000 * 1000000};

	(void) syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &ts, NULL, 0);
}

void
dlock_word_wake_one(int *word)
{
	(void) syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void
dlock_word_wake_all(int *word)
{
	(void) syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

#else
#include <pthread.h>
#include <stdbool.h>

#include "clock.h"
#include "word.h"

/* Where threads sleep, by the address of their word. */
#define ROOMS 64

typedef struct Room
{
	pthread_mutex_t mutex;
	pthread_cond_t cond;
} Room;

static Room rooms[ROOMS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void
init_rooms(void)
{
	for (int i = 0; i < ROOMS; i++)
	{
		pthread_mutex_init(&rooms[i].mutex, NULL);
		dlock_cond_init(&rooms[i].cond);
	}
}

/* A child has none of the threads that were in them, or held a mutex. */
static void
make_rooms(void)
{
	init_rooms();
	pthread_atfork(NULL, NULL, init_rooms);
}

static Room *
room_of(const int *word)
{
	pthread_once(&once, make_rooms);
	return &rooms[(uintptr_t) word / 64 % ROOMS];
}

void
dlock_word_sleep(int *word, int seen, int64_t ms)
{
	Room	   *room = room_of(word);

	pthread_mutex_lock(&room->mutex);
	if (__atomic_load_n(word, __ATOMIC_ACQUIRE) == seen)
		dlock_cond_wait(&room->cond, &room->mutex, dlock_now() + ms);
	pthread_mutex_unlock(&room->mutex);
}

void
dlock_word_wake_all(int *word)
{
	Room	   *room = room_of(word);

	pthread_mutex_lock(&room->mutex);
	pthread_cond_broadcast(&room->cond);
	pthread_mutex_unlock(&room->mutex);
}

/* It may share the room with others. */
void
dlock_word_wake_one(int *word)
{
	dlock_word_wake_all(word);
}

#endif
