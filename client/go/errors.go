package dlock

import (
	"context"
	"errors"
	"strings"
)

// The kinds of errors. Test for them with errors.Is.
var (
	// ErrBusy: another client holds the lock, and the wait is over.
	ErrBusy = errors.New("dlock: busy")
	// ErrLost: the lock was held and is not any more. Do not continue, and do not repeat with this version. It is
	// also the cause of the context of a lock that is lost.
	ErrLost = errors.New("dlock: lost")
	// ErrRefused: a holder of a lower priority did not yield in time (55P03).
	ErrRefused = errors.New("dlock: refused")
	// ErrDeadlock: requests wait for each other (40P01).
	ErrDeadlock = errors.New("dlock: deadlock")
	// ErrDenied: a missing privilege, or a policy (42501).
	ErrDenied = errors.New("dlock: denied")
	// ErrNotReady: the extension is missing, too old or not preloaded, or it lacks a feature.
	ErrNotReady = errors.New("dlock: not ready")
	// ErrInvalid: the server rejected an argument (22xxx), or the client did.
	ErrInvalid = errors.New("dlock: invalid argument")
	// ErrUnreachable: no answer, so it is unknown whether the statement took effect. What was granted unheard is
	// given back in the background.
	ErrUnreachable = errors.New("dlock: unreachable")
	// ErrClosed: these Locks are closed.
	ErrClosed = errors.New("dlock: closed")
	// ErrServer: any other error of the server.
	ErrServer = errors.New("dlock: error")
)

// Error is what all functions of this package return, except the errors of a caller's context.
type Error struct {
	Kind    error  // one of the above
	Code    string // the server's SQLSTATE, if it has answered
	Message string
	Cause   error // the error of the driver
}

func (e *Error) Error() string { return e.Kind.Error() + ": " + e.Message }

// Unwrap makes errors.Is and errors.As find the kind and the cause.
func (e *Error) Unwrap() []error { return []error{e.Kind, e.Cause} }

func fail(kind error, message string) *Error { return &Error{Kind: kind, Message: message} }

func kindOf(code string) error {
	switch code {
	case "", "25006", "25P04", "53300":
		return ErrUnreachable
	case "42501", "3D000":
		return ErrDenied
	case "55000", "42883", "3F000", "42P01", "42704", "42725", "0A000":
		return ErrNotReady
	case "LK001":
		return ErrLost
	case "55P03":
		return ErrRefused
	case "40P01":
		return ErrDeadlock
	}
	switch {
	case strings.HasPrefix(code, "08"), strings.HasPrefix(code, "57P0"):
		return ErrUnreachable
	case strings.HasPrefix(code, "22"):
		return ErrInvalid
	case strings.HasPrefix(code, "28"):
		return ErrDenied
	}
	return ErrServer
}

// sqlstate is the code of a driver's error; "" means that the server did not answer.
func sqlstate(err error) string {
	var answer interface{ SQLState() string }
	if errors.As(err, &answer) {
		return answer.SQLState()
	}
	return ""
}

// translate says what an error of a driver means.
func translate(err error) *Error {
	var ours *Error
	if errors.As(err, &ours) {
		return ours
	}
	code := sqlstate(err)
	message := err.Error()
	if code == "" && errors.Is(err, context.DeadlineExceeded) {
		message = "no answer from the server in time"
	}
	return &Error{Kind: kindOf(code), Code: code, Message: message, Cause: err}
}

// isTurnedAway: the server is there, but accepts nobody: full, starting or shutting down.
func isTurnedAway(err *Error) bool {
	return err.Code == "53300" || strings.HasPrefix(err.Code, "57P0")
}
