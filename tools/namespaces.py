"""Several hosts on one machine: network namespaces, joined by a bridge, with what goes wrong in networks on demand.

run(work) calls work() in a process that has mounts, process ids and networks of its own. All of them end with it: nothing stays,
however it ends, and nothing outside is touched. In there, Network makes the hosts. Needs iproute2 and nftables, and either root or a
kernel that lets users make namespaces.

Host i is called hosti, also by its own programs (it has a host name and an entry in /etc/hosts), and has one interface, eth0, with
10.77.0.(i+1)/24 and fd77::(i+1)/64. The files are those of the machine, and so is the kernel.
"""
import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

SKIPPED = 77
TOOLS = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables", "unshare": "util-linux", "hostname": "hostname"}
TRAPS = ("bridge", "bridges", "unreachable", "mtu", "jumbo")
LATENCY = "20ms"  # of what waits in a shaped interface; what would wait longer is dropped
GATEWAY = 254
DEAD_NEIGHBOUR = "02:00:00:00:00:ff"

LIBC = ctypes.CDLL(None, use_errno=True)
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND = 0x1000
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x10000000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG = 1
SIOCETHTOOL, ETHTOOL_SSET, ETHTOOL_STSO, ETHTOOL_SGSO = 0x8946, 0x02, 0x1f, 0x24
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454ca, 2, 0x1000


is_isolated = False  # in a process of run()'s


class Unavailable(Exception):
    """This machine does not let us; says why."""


# ---- a process with everything of its own

def _system(name, *arguments):
    if getattr(LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise Unavailable(f"{name} is not permitted or not possible here: {os.strerror(number)}")


def _mount(what, where, kind, flags, options=None):
    _system("mount", what.encode(), where.encode(), kind and kind.encode(), ctypes.c_ulong(flags), options and options.encode())


def _become_root():
    user, group = os.getuid(), os.getgid()
    _system("unshare", CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _furnish():
    """In the new namespaces: mounts that fit them."""
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    os.mkdir("/run/netns")
    _ip("link", "set", "lo", "up")


def _end_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _status(state):
    code = os.waitstatus_to_exitcode(state)
    return code if code >= 0 else 128 - code


def _reap_until(child):
    while True:
        ended, state = os.wait()
        if ended == child:
            return _status(state)


def _guarded(work):
    """work() and its exit status, in a child. Does not return."""
    status = 1
    try:
        status = work() or 0
    except Unavailable as reason:
        print(f"no namespaces: {reason}")
        status = SKIPPED
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _first_process(work):
    """Process 1 of the new process ids: with it everything ends."""
    global is_isolated
    _furnish()
    is_isolated = True
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _guarded(work)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work decides; the terminal tells it, too
    return _reap_until(child)


def _isolated(work):
    if os.geteuid() != 0:
        _become_root()
    _system("unshare", CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWUTS)
    alive, keep_alive = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(keep_alive)
        _end_with_parent()
        if os.read(alive, 1) != b"g":  # the parent went before the line above
            os._exit(1)
        _guarded(lambda: _first_process(work))
    os.write(keep_alive, b"g")
    return _reap_until(child)


def run(work):
    """The exit status of work(), which runs in a process as described above. 77, with the reason as the last line on standard output,
    where that cannot be had."""
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            print(f"no namespaces: {tool} (package {package}) is not installed")
            return SKIPPED
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()

    def middle():
        _end_with_parent()
        if os.getppid() != parent:  # it went before the line above
            return 1
        return _isolated(work)

    child = os.fork()
    if child == 0:
        _guarded(middle)
    while True:
        try:
            return _status(os.waitpid(child, 0)[1])
        except KeyboardInterrupt:
            continue  # the work has heard it as well, and ends


# ---- the hosts

def _run(words, **options):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(words)}: {done.stdout.strip()}")
    return done.stdout


def _ip(*words, host=None):
    return _run(["ip", *(["-n", name_of(host)] if host is not None else []), *words])


def name_of(host):
    return f"host{host}"


def _in_namespace(host, work):
    """work() in a child that is in the host's network."""
    child = os.fork()
    if child == 0:
        def there():
            with open(f"/run/netns/{name_of(host)}", "rb") as space:
                _system("setns", space.fileno(), CLONE_NEWNET)
            return work()
        _guarded(there)
    return child


def _ethtool(interface, request):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        buffer = ctypes.create_string_buffer(request, len(request))
        fcntl.ioctl(any_socket, SIOCETHTOOL, struct.pack("16sP", interface.encode(), ctypes.addressof(buffer)))


def _open_tap(interface):
    """An interface that is up as long as the returned file is open; what is sent to it waits there for nobody."""
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", interface.encode(), IFF_TAP | IFF_NO_PI))
    return tap


class Network:
    """hosts: how many. rate: bits per second each way of each host, in tc's words; None: as fast as the machine. ipv4: whether hosts have
    such addresses. announced: the address of a host is on its loopback interface, and eth0 has none, as where hosts tell their routers
    themselves what their addresses are (BGP); there is no default route, and no IPv6. traps: of TRAPS.

    bridge: each host also has docker0, of one address everywhere. bridges: each host also has eight of those, which the system lists before
    eth0, and no default route. unreachable: each host also has eth1, which says that it is fast and
    swallows everything. mtu: host 0 sends larger packets than the way takes, which are dropped in silence. jumbo: all hosts do.
    """

    is_there = False  # one at a time

    def __init__(self, hosts, rate=None, ipv4=True, announced=False, traps=()):
        if not is_isolated:
            raise RuntimeError("a Network is made in work() of namespaces.run(work), else it would change this machine's own network and files")
        if Network.is_there:
            raise RuntimeError("the network before this one has not been closed")
        Network.is_there = True
        self.hosts = hosts
        self.rate = rate
        self.has_ipv4 = ipv4
        self.is_announced = announced
        self.holders = []
        self._make_bridge()
        for host in range(hosts):
            self._make_host(host)
        for host in range(hosts):
            self._await_up("eth0", host)
        self._name_hosts()
        self._write_agent()
        for trap in traps:
            getattr(self, "_trap_" + trap)()

    def close(self):
        for holder in self.holders:
            os.kill(holder, signal.SIGKILL)
            os.waitpid(holder, 0)
        for host in range(self.hosts):
            with contextlib.suppress(Unavailable):  # the two ends of a cable go together
                _ip("link", "delete", f"port{host}")
            _ip("netns", "delete", name_of(host))
        _ip("link", "delete", "kolo")
        Network.is_there = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def address(self, host):
        """The one that a program should be told: IPv4 where there is."""
        return f"10.77.0.{host + 1}" if self.has_ipv4 else f"fd77::{host + 1:x}"

    def endpoint(self, host, port):
        return f"{self.address(host)}:{port}" if self.has_ipv4 else f"[{self.address(host)}]:{port}"

    def subnet(self):
        return "10.77.0.0/24" if self.has_ipv4 else "fd77::/64"

    def command(self, host, words):
        """What to start for the words to run on that host."""
        return ["ip", "netns", "exec", name_of(host), "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name_of(host),
                *map(str, words)]

    agent = "/run/agent"  # [-FLAG...] HOST COMMAND...: what ssh is elsewhere; flags, such as Hydra's -x, mean nothing here

    # ---- trouble while it runs

    def pull_cable(self, host):
        _ip("link", "set", f"port{host}", "down")

    def plug_cable(self, host):
        _ip("link", "set", f"port{host}", "up")

    def take_down(self, host):
        """The host has no eth0 any more."""
        _ip("link", "set", "eth0", "down", host=host)

    def break_connections(self, one, other, port):
        """Of a host's port to another host, those that are; both ends hear of it."""
        done = _run(["ip", "netns", "exec", name_of(one), "ss", "--kill", "--no-header", "sport", "=", str(port), "dst", self.address(other)])
        if str(port) not in done:
            raise Unavailable("ss cannot break connections here")

    def block(self, one, other):
        """A firewall on host `one`, which drops all packets from and to the other in silence."""
        other += 1
        self._nft(one, f"""add table inet block
            add chain inet block in {{ type filter hook input priority 0; }}
            add chain inet block out {{ type filter hook output priority 0; }}
            add rule inet block in ip saddr 10.77.0.{other} drop
            add rule inet block out ip daddr 10.77.0.{other} drop
            add rule inet block in ip6 saddr fd77::{other:x} drop
            add rule inet block out ip6 daddr fd77::{other:x} drop""")

    def unblock(self, one):
        self._nft(one, "delete table inet block")

    def open_only(self, host, ports):
        """A firewall on a host, which drops all packets of new connections but to these ports ("17000-17009")."""
        self._nft(host, f"""add table inet ports
            add chain inet ports in {{ type filter hook input priority 0; }}
            add rule inet ports in iif lo accept
            add rule inet ports in tcp dport {ports} accept
            add rule inet ports in tcp flags & (syn | ack) == syn drop""")

    def hide(self, one, other, how):
        """Host `one` has no way to the other. how: unreachable ("No route to host"), or throw ("Network is unreachable")."""
        for address in self._addresses(other):
            _ip("route", "add", how, address, host=one)

    def show(self, one, other):
        """Ends hide()."""
        for address in self._addresses(other):
            _ip("route", "delete", address, host=one)

    def _addresses(self, host):
        return [*([f"10.77.0.{host + 1}/32"] if self.has_ipv4 else []), f"fd77::{host + 1:x}/128"]

    # ---- making it

    def _make_bridge(self):
        _ip("link", "add", "kolo", "type", "bridge", "forward_delay", "0", "mcast_snooping", "0")
        if self.has_ipv4:
            _ip("address", "add", f"10.77.0.{GATEWAY}/24", "dev", "kolo")
        _ip("address", "add", f"fd77::{GATEWAY:x}/64", "dev", "kolo", "nodad")
        _ip("link", "set", "kolo", "up")

    def _make_host(self, host):
        name = name_of(host)
        _ip("netns", "add", name)
        # The system lists it after what traps add: by its number. Process 1 has this process's network.
        _ip("link", "add", "eth0", "index", "70", "type", "veth", "peer", "name", f"port{host}", "netns", "1", host=host)
        _ip("link", "set", f"port{host}", "master", "kolo", "up")
        _ip("link", "set", "lo", "up", host=host)
        _ip("link", "set", "eth0", "up", host=host)
        if self.is_announced:
            self._announce(host)
        else:
            self._address(host)
        if self.rate is not None:
            self._shape("eth0", host)
            self._shape(f"port{host}")

    def _announce(self, host):
        _ip("address", "add", f"10.77.0.{host + 1}/32", "dev", "lo", host=host)
        _ip("route", "add", "10.77.0.0/24", "dev", "eth0", "src", f"10.77.0.{host + 1}", host=host)

    def _address(self, host):
        if self.has_ipv4:
            _ip("address", "add", f"10.77.0.{host + 1}/24", "dev", "eth0", host=host)
            _ip("route", "add", "default", "via", f"10.77.0.{GATEWAY}", host=host)
        _ip("address", "add", f"fd77::{host + 1:x}/64", "dev", "eth0", "nodad", host=host)
        _ip("-6", "route", "add", "default", "via", f"fd77::{GATEWAY:x}", host=host)

    def _await_up(self, interface, host):
        """The kernel takes up to a second to notice that a cable is in."""
        deadline = time.monotonic() + 5
        while " UP " not in _ip("-brief", "link", "show", "dev", interface, host=host):
            if time.monotonic() > deadline:
                raise Unavailable(f"{interface} does not come up")
            time.sleep(0.02)

    def _shape(self, interface, host=None):
        space = ["-n", name_of(host)] if host is not None else []
        _run(["tc", *space, "qdisc", "add", "dev", interface, "root", "tbf", "rate", self.rate, "burst", "256kb", "latency", LATENCY])

    def _name_hosts(self):
        with open("/run/hosts", "w", encoding="ascii") as file:
            file.write("127.0.0.1 localhost\n::1 localhost\n")
            for host in range(self.hosts):
                if self.has_ipv4:
                    file.write(f"10.77.0.{host + 1} {name_of(host)}\n")
                if not self.is_announced:
                    file.write(f"fd77::{host + 1:x} {name_of(host)}\n")
        _mount("/run/hosts", "/etc/hosts", None, MS_BIND)

    def also_name(self, host, name):
        """Gives a host another name, from now on; who had that name before has it no longer."""
        with open("/run/hosts", "r+", encoding="ascii") as file:
            lines = [line for line in file if line.split()[1:] != [name]]
            file.seek(0)
            file.write("".join(lines) + f"{self.address(host)} {name}\n")
            file.truncate()

    def _write_agent(self):
        with open(self.agent, "w", encoding="ascii") as file:
            file.write('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1\nshift\n'
                       'exec ip netns exec "$host" unshare --uts sh -c \'hostname "$0" && eval "$1"\' "$host" "$*"\n')
        os.chmod(self.agent, 0o755)

    def _nft(self, host, script):
        _run(["ip", "netns", "exec", name_of(host), "nft", "-f", "-"], input=script)

    # ---- traps

    def _trap_bridge(self):
        for host in range(self.hosts):
            _ip("link", "add", "docker0", "type", "bridge", host=host)
            _ip("link", "add", "veth0", "type", "veth", "peer", "name", "container0", host=host)
            _ip("link", "set", "veth0", "master", "docker0", "up", host=host)
            _ip("link", "set", "container0", "up", host=host)
            _ip("address", "add", "172.17.0.1/16", "dev", "docker0", host=host)
            _ip("link", "set", "docker0", "up", host=host)
        for host in range(self.hosts):
            self._await_up("docker0", host)

    def _trap_bridges(self):
        bridges = [f"br{number}" for number in range(8)]
        for host in range(self.hosts):
            for number, bridge in enumerate(bridges):
                _ip("link", "add", bridge, "type", "bridge", host=host)
                _ip("link", "add", f"veth{number}", "type", "veth", "peer", "name", f"container{number}", host=host)
                _ip("link", "set", f"veth{number}", "master", bridge, "up", host=host)
                _ip("link", "set", f"container{number}", "up", host=host)
                _ip("address", "add", f"172.{18 + number}.0.1/16", "dev", bridge, host=host)
                _ip("link", "set", bridge, "up", host=host)
            for family in ("-4", "-6"):
                _run(["ip", "-n", name_of(host), family, "route", "flush", "default"])
        for host in range(self.hosts):
            for bridge in bridges:
                self._await_up(bridge, host)

    def _trap_unreachable(self):
        for host in range(self.hosts):
            self._hold_tap(host, "eth1", megabits=100000)
            _ip("link", "set", "eth1", "up", host=host)
            self._lead_nowhere(host, "eth1")

    def _lead_nowhere(self, host, interface):
        if self.has_ipv4:
            _ip("address", "add", f"10.66.0.{host + 1}/24", "dev", interface, host=host)
        _ip("address", "add", f"fd66::{host + 1:x}/64", "dev", interface, "nodad", host=host)
        for other in range(self.hosts):
            if other == host:
                continue
            if self.has_ipv4:
                _ip("neighbour", "add", f"10.66.0.{other + 1}", "lladdr", DEAD_NEIGHBOUR, "dev", interface, host=host)
            _ip("neighbour", "add", f"fd66::{other + 1:x}", "lladdr", DEAD_NEIGHBOUR, "dev", interface, host=host)

    def _hold_tap(self, host, interface, megabits):
        ready, tell = os.pipe()

        def hold():
            _end_with_parent()
            try:
                tap = _open_tap(interface)
            except OSError:
                return 1
            _ethtool(interface, struct.pack("<IIIHBBBBBBIIHBBIII", ETHTOOL_SSET, 0, 0, megabits & 0xffff, 1, 0, 0, 0, 0, 0, 0, 0,
                                            megabits >> 16, 0, 0, 0, 0, 0))
            os.write(tell, b"r")
            while os.read(tap, 65536):
                pass

        self.holders.append(_in_namespace(host, hold))
        os.close(tell)
        if os.read(ready, 1) != b"r":
            raise Unavailable("no interface of the kind tap can be made (/dev/net/tun)")
        os.close(ready)

    def _trap_mtu(self):
        self._enlarge([0])

    def _trap_jumbo(self):
        self._enlarge(range(self.hosts))

    def _enlarge(self, hosts):
        """Packets that TCP itself cuts, so that each is seen, and dropped, at its true size."""
        def leave_whole():
            for request in (ETHTOOL_STSO, ETHTOOL_SGSO):
                _ethtool("eth0", struct.pack("<II", request, 0))

        for host in hosts:
            _ip("link", "set", "eth0", "mtu", "9000", host=host)
            if _status(os.waitpid(_in_namespace(host, leave_whole), 0)[1]) != 0:
                raise Unavailable("segmentation cannot be turned off on an interface")
