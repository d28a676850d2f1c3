package dlock

import "context"

// Source is what this package needs of a driver and its pool. pgxdlock and sqldlock have one; a program need not
// know it.
type Source interface {
	// Borrow takes a connection of the user's pool. Closing it gives it back.
	Borrow(ctx context.Context) (Conn, error)
	// Open makes a connection that is not of the pool.
	Open(ctx context.Context) (Conn, error)
	// Transaction runs body in a transaction of the user's pool. tx is what the function Fenced of the
	// driver's package gives to its caller, and exec runs a statement in it.
	Transaction(ctx context.Context, body func(tx any, exec Exec) error) error
}

// Conn is one connection.
type Conn interface {
	// Query runs one statement in autocommit. A connection whose statement was interrupted is not used again.
	Query(ctx context.Context, sql string, args ...any) ([]Row, error)
	// PID is the process that the driver was told at connect; 0: this driver has no notifications.
	PID() uint32
	// Wait returns the payload of the next notification. After the end of ctx, the connection is usable.
	Wait(ctx context.Context) (payload string, err error)
	// Close: broken is true if it must not be used again, and the server need not be there.
	Close(broken bool)
}

// Connect makes a connection.
type Connect func(ctx context.Context) (Conn, error)

// Row has the values of one row as texts; nil is NULL.
type Row []*string

// Exec runs a statement in a transaction. All args are strings.
type Exec func(sql string, args ...any) error
