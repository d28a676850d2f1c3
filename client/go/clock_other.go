//go:build !linux

package dlock

import "time"

var started = time.Now()

// now is the clock of package time. It may stand still while the machine is suspended, and a lock then be
// believed to be held; the fence does not depend on it.
func now() time.Duration { return time.Since(started) }
