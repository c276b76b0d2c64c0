# Functions of the scripts that start servers. The variable `folder` has the folder of the server.

find_in() { # program, folders...
    command -v "$1" 2>/dev/null && return
    local program=$1 folder
    shift
    for folder in "$@"; do
        [ -x "$folder/$program" ] && { echo "$folder/$program"; return; }
    done
    return 1
}
pg() { find_in "$1" $(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -Vr); }
maria() { find_in "$1" /usr/sbin /usr/bin /usr/local/mysql/bin; }

obtain() { # Debian packages, what they are for
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing $1" >&2
        # No service is to be started for them.
        # shellcheck disable=SC2086
        (apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq $1) >&2
    else
        echo "this needs $2: install it (Debian: apt-get install $1)" >&2
        exit 1
    fi
}

# Servers refuse to be run by root.
as_user() { # user, command...
    local user=$1
    shift
    if [ "$(id -u)" = 0 ]; then
        chown -R "$user" "$folder"
        exec setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
    else
        exec "$@"
    fi
}
