#!/bin/sh
# Redirects Kafka connections to a gateway in transparent mode: nftables rules for one set of ports.
#
# All rules are in one nftables table, `inet fetchgate`, and for tproxy in one routing table and one rule for
# each IP version. So `down` removes what `up` added, and nothing else. `up` replaces the rules of an earlier
# `up`. Open connections are not redirected: only a SYN is. What connections through the gateway need is not
# removed while the mode stays the same.
set -eu

TABLE=fetchgate
MARK=0x6667  # of packets that the kernel is to deliver here; also the number of the routing table
ME=${0##*/}

usage() {
    cat <<END
usage: $ME up --mode redirect|tproxy --ports PORT[,PORT|,FIRST-LAST...] --to PORT --user USER [--dry-run]
       $ME watch --mode MODE --ports LIST --to PORT --user USER
       $ME show
       $ME down [--dry-run]

Adds, shows and removes the rules that redirect connections to a gateway in transparent mode.

  up       add the rules, in place of earlier ones
  watch    add the rules while a program listens at --to, and remove them within a second when none does, and
           at the end (SIGTERM): clients then connect directly to the brokers
  show     print the rules
  down     remove the rules

The rules redirect new connections to --ports, IPv4 and IPv6: connections from this network namespace, except
those of USER, and connections that it forwards. The gateway must run as a user of its own: otherwise its
connections to the brokers would be redirected as well.

  --mode redirect   the gateway has the options --transparent redirect --listen 127.0.0.1:PORT
  --mode tproxy     the gateway has the options --transparent tproxy --listen 127.0.0.1:PORT, and CAP_NET_RAW
  --ports LIST      the brokers' ports
  --to PORT         the port of the gateway's --listen
  --user USER       the user of the gateway: name or number
  --dry-run         print the commands, and run none of them

It needs CAP_NET_ADMIN in this network namespace, and nft. The mode tproxy also needs ip (iproute2).

examples:
  $ME up --mode redirect --ports 9092,9093 --to 19092 --user 61092
  $ME watch --mode redirect --ports 9092,9093 --to 19092 --user 61092
  $ME down
END
}

wrong() {
    echo "$ME: $1" >&2
    exit 2
}

failed() {
    echo "$ME: $1" >&2
    exit 1
}

is_port() {
    case $1 in
    '' | *[!0-9]* | 0* | ??????*) return 1 ;;
    esac
    [ "$1" -le 65535 ]
}

is_user() {
    case $1 in
    0) return 0 ;;
    *[!0-9]* | 0* | ???????????*) return 1 ;;
    esac
    [ "$1" -le 4294967294 ] # one more is the kernel's word for nobody at all
}

# Checks --ports: a range with the port of --to would redirect the gateway's clients again and again.
check_ports() {
    rest=$ports,
    while [ -n "$rest" ]; do
        item=${rest%%,*}
        rest=${rest#*,}
        first=${item%-*}
        last=${item#*-}
        if ! is_port "$first" || ! is_port "$last" || [ "$first" -gt "$last" ]; then
            wrong "--ports $ports: '$item' is neither a port nor a range of ports; write 9092,9093-9095"
        fi
        if [ "$first" -le "$to" ] && [ "$to" -le "$last" ]; then
            wrong "--ports $ports has the port of --to; give the brokers' ports in --ports, and the gateway's in --to"
        fi
    done
}

check_user() {
    case $user in
    '' | *[!0-9]*)
        uid=$(id -u -- "$user" 2>/dev/null) ||
            wrong "--user '$user': there is no such user; give the name or the number of the gateway's user"
        ;;
    *)
        is_user "$user" || wrong "--user $user: it is not the number of a user; give the name or the number of the gateway's user"
        uid=$user
        ;;
    esac
}

check_rights() {
    command -v nft >/dev/null || failed "nft is missing: install nftables"
    [ "$1" = redirect ] || command -v ip >/dev/null || failed "ip is missing: install iproute2 (tproxy needs it)"
    problem=$(nft list tables 2>&1 >/dev/null) ||
        failed "CAP_NET_ADMIN in this network namespace is missing: run it as root, or in a container that adds NET_ADMIN ($(echo "$problem" | head -n 1))"
}

has_ipv6() {
    [ -n "$(cat /proc/net/if_inet6 2>/dev/null)" ]
}

# Prints the rules of a mode for nft. With the first two lines, they replace the earlier ones in one step.
rules() {
    printf 'table inet %s\ndelete table inet %s\ntable inet %s {\n' "$TABLE" "$TABLE" "$TABLE"
    "rules_$mode"
    echo '}'
}

rules_redirect() {
    cat <<END
    chain outgoing {
        type nat hook output priority -100; policy accept;
        meta skuid $uid return comment "the gateway's own"
        tcp dport { $ports } tcp flags & (syn | ack) == syn counter redirect to :$to
    }
    chain forwarded {
        type nat hook prerouting priority -100; policy accept;
        fib daddr type local return comment "for this machine itself"
        tcp dport { $ports } tcp flags & (syn | ack) == syn counter redirect to :$to
    }
END
}

# Without it, a client waits while no gateway listens (IPv4: the kernel has no route for its own reset).
refuse_unheard() {
    refuse="tcp dport { $ports } ct mark $MARK counter reject with tcp reset comment \"no gateway listens\""
}

rules_tproxy() {
    cat <<END
    chain outgoing {
        type route hook output priority -150; policy accept;
        meta skuid $uid return comment "the gateway's own"
        tcp dport { $ports } tcp flags & (syn | ack) == syn counter ct mark set $MARK
        tcp dport { $ports } ct mark $MARK meta mark set $MARK
    }
    chain forwarded {
        type filter hook prerouting priority -150; policy accept;
        meta mark != $MARK fib daddr type local return comment "for this machine itself"
        meta mark != $MARK tcp dport { $ports } tcp flags & (syn | ack) == syn counter ct mark set $MARK
        meta nfproto ipv4 tcp dport { $ports } ct mark $MARK tproxy ip to :$to meta mark set $MARK accept
        meta nfproto ipv6 tcp dport { $ports } ct mark $MARK tproxy ip6 to :$to meta mark set $MARK accept
        $refuse
    }
END
}

# Marked packets are delivered on this machine, whatever their address is. A route that exists is kept: without
# it, even for a moment, packets of open connections would reach the broker, which does not know them.
add_routes() {
    add_route -4 0.0.0.0/0
    if has_ipv6; then add_route -6 ::/0; fi
}

add_route() {
    has_rule "$1" || run ip "$1" rule add fwmark $MARK lookup $((MARK))
    run ip "$1" route replace local "$2" dev lo table $((MARK))
}

drop_routes() {
    for version in -4 -6; do
        has_rule $version || continue
        run ip $version rule del fwmark $MARK lookup $((MARK))
        run ip $version route flush table $((MARK))
    done
}

has_rule() {
    [ -n "$(ip "$1" rule list fwmark $MARK 2>/dev/null)" ]
}

has_routes() {
    has_rule -4 || has_rule -6
}

run() {
    if [ "$dry_run" = yes ]; then
        echo "$*"
    else
        "$@" || failed "$* failed"
    fi
}

check_options() {
    [ -n "$mode" ] || wrong "--mode is missing: give --mode redirect or --mode tproxy"
    case $mode in
    redirect | tproxy) ;;
    *) wrong "--mode $mode: give redirect or tproxy" ;;
    esac
    [ -n "$ports" ] || wrong "--ports is missing: give the brokers' ports, as in --ports 9092"
    [ -n "$to" ] || wrong "--to is missing: give the port of the gateway's --listen, as in --to 19092"
    is_port "$to" || wrong "--to $to: it is not a port"
    [ -n "$user" ] || wrong "--user is missing: without it, the gateway's own connections would be redirected to it"
    check_ports
    check_user
    refuse_unheard
}

up() {
    check_options
    if [ "$dry_run" = yes ]; then
        [ "$mode" = redirect ] || add_routes
        echo "nft -f - <<END"
        rules
        echo END
        [ "$mode" = tproxy ] || drop_routes
        return
    fi
    check_rights "$mode"
    add_rules
}

add_rules() {
    if [ "$mode" = tproxy ] && ! rules | nft -c -f - 2>/dev/null; then
        refuse='' # Linux before 5.9 can't refuse connections at this hook
        if rules | nft -c -f - 2>/dev/null; then
            echo "$ME: this kernel (before 5.9) can't refuse clients while no gateway listens: they wait until their time-out" >&2
        fi
    fi
    problem=$(rules | nft -c -f - 2>&1) ||
        failed "nft can't use the rules, and nothing was changed; does this kernel have nf_tables, with $mode? ($(echo "$problem" | head -n 1))"
    [ "$mode" = redirect ] || add_routes
    rules | nft -f - || failed "nft could not add the rules, although it had found no error in them"
    [ "$mode" = tproxy ] || drop_routes
    echo "connections to ports $ports are redirected to the gateway at port $to ($mode), except those of user $uid"
}

show() {
    check_rights redirect
    nft list table inet $TABLE 2>/dev/null || failed "there are no rules of fetchgate"
    has_routes || return 0
    for version in -4 -6; do
        ip $version rule list fwmark $MARK 2>/dev/null || continue
        ip $version route show table $((MARK)) 2>/dev/null || continue
    done
}

down() {
    if [ "$dry_run" = yes ]; then
        echo "nft delete table inet $TABLE"
        drop_routes
        return
    fi
    check_rights redirect
    remove_rules
}

remove_rules() {
    if has_rules; then
        run nft delete table inet $TABLE
        echo "the rules were removed: new connections go directly to the brokers"
    else
        echo "there are no rules of fetchgate"
    fi
    drop_routes
}

has_rules() {
    nft list table inet $TABLE >/dev/null 2>&1
}

# Whether a program listens at --to in this network namespace. No connection is made for that.
is_heard() {
    grep -Eqs ":$port_hex [0-9A-F]+:0000 0A " /proc/net/tcp /proc/net/tcp6
}

watch() {
    check_options
    check_rights "$mode"
    port_hex=$(printf '%04X' "$to")
    trap 'remove_rules; exit 0' TERM INT
    added=unknown
    while true; do
        if is_heard; then
            [ $added = yes ] || add_rules
            added=yes
        else
            [ $added = no ] || ! has_rules || remove_rules
            added=no
        fi
        sleep 1 &
        wait $! # a signal ends the wait at once
    done
}

mode='' ports='' to='' user='' refuse='' dry_run=no
command=${1:-}
case $command in
-h | --help | help)
    usage
    exit 0
    ;;
up | watch | show | down) shift ;;
'') wrong "give a command: up, watch, show or down (see --help)" ;;
*) wrong "'$command' is not a command: give up, watch, show or down (see --help)" ;;
esac
while [ $# -gt 0 ]; do
    case $command$1 in
    *--help) usage && exit 0 ;;
    up--dry-run | down--dry-run)
        dry_run=yes
        shift
        continue
        ;;
    up--mode | up--ports | up--to | up--user | watch--mode | watch--ports | watch--to | watch--user) [ $# -ge 2 ] || wrong "$1 needs a value" ;;
    *) wrong "'$1' is not an option of $command (see --help)" ;;
    esac
    case $1 in
    --mode) mode=$2 ;;
    --ports) ports=$2 ;;
    --to) to=$2 ;;
    --user) user=$2 ;;
    esac
    shift 2
done
"$command"
