#!/usr/bin/env bash
# For the tests: tries the locks that it is told, line by line, and says the fence when it has got one. Each stays taken.
lock="$(dirname "$0")/../../examples/foreign/lock.sh"
while read -r what name; do
    if [ "$what" = try ]; then
        fence=$(bash "$lock" "$1" "$name" --lease 600 --hold 600 -- sh -c 'echo "$PERENNIAL_FENCE"' 2>/dev/null) || true
        echo "said $fence"
    fi
done
