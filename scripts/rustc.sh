#!/bin/sh
# cargo_for_nginx has cargo run rustc by this. With the target directory in its flags, cargo would compile all crates again
# for each such directory.
exec "$@" --remap-path-prefix="$CARGO_TARGET_DIR=./target"
