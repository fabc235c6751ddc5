#!/usr/bin/env python3
"""tools/rdma-vm itself, in two boots. usage: check_rdma_vm.py RDMA_VM

Where no machine can be booted, it says so and exits with 77.
"""
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import cases

RDMA_VM = os.path.abspath(sys.argv.pop(1))
SKIPPED, TIMED_OUT = 77, 124
SECONDS = 240  # for a boot and what is done in it, on a busy machine

# $nic: the interface; $server: the address at which ib_write_bw's server is found. -F: or it gives up on a busy machine, whose clock seems
# to vary.
CLIENT = """
write_bw() { timeout 60 ib_write_bw -F -d rxe$nic -x 1 -p $((18600 + nic)) -s 4096 -n 200 "$@"; }
client() {
  tries=20
  until write_bw "$server" >client.$nic; do
    [ $((tries -= 1)) -gt 0 ] || { cat client.$nic; echo "no bandwidth over rxe$nic"; exit 1; }
    sleep 0.3
  done
}
"""

ONE_MACHINE = CLIENT + r"""
echo "in $PWD as $(id -u), machine $KOLO_VM of $KOLO_VM_ADDRESS, peer <$KOLO_VM_PEER>, $KOLO_VM_NICS interfaces"
echo "passed: $KOLO_CHECK, $WORDS, <$UNRELATED>"
echo "locked memory: $(ulimit -l)"
echo report >"$OUT/report"
echo changed >"$PRECIOUS" && cat "$PRECIOUS"
cd /tmp && [ "/tmp/$(ls)/precious" = "$PRECIOUS" ] && echo "nothing else in /tmp"
for nic in 0 1; do
  port=/sys/class/infiniband/rxe$nic/ports/1
  echo "rxe$nic: $(cat $port/state), $(cat $port/gid_attrs/types/1), $(cat $port/gids/1)"
  ibv_devinfo -d rxe$nic | grep active_mtu
  write_bw >server.$nic &
  server=127.0.0.1 && client && wait $! && echo "wrote over rxe$nic"
done
tc qdisc add dev eth0 root netem loss 1% delay 1ms && tc qdisc del dev eth0 root && echo "netem works"
tc qdisc add dev eth1 root tbf rate 1gbit burst 100kb latency 10ms && echo "tbf works"
sent=$(cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts)
ib_write_bw -F -d rxe0 -x 1 -p 18610 -D 30 >/dev/null 2>&1 &
until grep -q ":$(printf %X 18610) .* 0A " /proc/net/tcp; do sleep 0.1; done # it listens
ib_write_bw -F -d rxe0 -x 1 -p 18610 -D 30 127.0.0.1 >failing 2>&1 &
client=$!
until [ "$(cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts)" -gt $((sent + 1000)) ]; do sleep 0.1; done
kill -0 $client && echo "it runs until the link is down"
ip link set eth0 down
until [ "$(cat /sys/class/infiniband/rxe0/ports/1/state)" = "1: DOWN" ]; do sleep 0.1; done
echo "rxe0 is down"
# Mostly "Completion with error"; on a slow machine it may fail first in telling its other side, or not notice.
wait $client && echo "no error with the link down" || echo "an error with the link down, $?"
cat failing
printf 'to standard error, without an end of line' >/dev/stderr
sleep 1000 & # it must not hold up the end
exit 3
"""

TWO_MACHINES = CLIENT + """
cd /tmp
echo "machine $KOLO_VM of $KOLO_VM_ADDRESS, peer $KOLO_VM_PEER"
for nic in 0 1; do
  if [ $KOLO_VM = 0 ]; then
    write_bw >server.$nic || exit 1
  else
    server=10.77.$nic.1 && client && echo "wrote over rxe$nic"
  fi
done
[ $KOLO_VM = 0 ] || exit 5
sleep 1000
"""


def tool(*arguments, **options):
    return subprocess.run([sys.executable, RDMA_VM, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", timeout=SECONDS + 60, check=False, **options)


def children(process):
    try:
        return Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
    except FileNotFoundError:
        return []


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


class RdmaVm(unittest.TestCase):
    def expect(self, done, status, *lines):
        self.assertEqual(done.returncode, status, done.stdout)
        for line in lines:
            self.assertIn(line, done.stdout.splitlines(), done.stdout)

    def test_one_machine(self):
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            precious = Path(folder, "precious")
            precious.write_text("kept\n", encoding="ascii")
            # Some variables of test runs name folders that the machine would show, too.
            environment = {**os.environ, "KOLO_TEST_REPORT": "", "KOLO_TEST_STOPS": "", "KOLO_CHECK": "a 'quoted' value", "UNRELATED": "x"}
            done = tool("--out", f"{folder}/out", "--timeout", str(SECONDS), "--env", "WORDS=two words", "--env", f"PRECIOUS={precious}",
                        "--", "sh", "-c", ONE_MACHINE, env=environment, cwd="/usr/lib")
            self.expect(done, 3, "in /usr/lib as 0, machine 0 of 10.77.0.1, peer <>, 2 interfaces",
                        "passed: a 'quoted' value, two words, <>", "locked memory: unlimited", "changed", "nothing else in /tmp",
                        "rxe0: 4: ACTIVE, RoCE v2, 0000:0000:0000:0000:0000:ffff:0a4d:0001", "wrote over rxe0",
                        "rxe1: 4: ACTIVE, RoCE v2, 0000:0000:0000:0000:0000:ffff:0a4d:0101", "wrote over rxe1",
                        "\t\t\tactive_mtu:\t\t4096 (5)", "netem works", "tbf works", "it runs until the link is down", "rxe0 is down",
                        "to standard error, without an end of line")
            self.assertEqual(Path(folder, "out/report").read_text(encoding="ascii"), "report\n")
            self.assertEqual(precious.read_text(encoding="ascii"), "kept\n")

    def test_two_machines(self):
        done = tool("--vms", "2", "--timeout", str(SECONDS), "--grace", "2", "--", "sh", "-c", TWO_MACHINES)
        self.expect(done, 5, "vm0: machine 0 of 10.77.0.1, peer 10.77.0.2", "vm1: machine 1 of 10.77.0.2, peer 10.77.0.1",
                    "vm1: wrote over rxe0", "vm1: wrote over rxe1", "rdma-vm: machine 0 has not ended 2 s after the other")

    def test_time_runs_out(self):
        self.expect(tool("--timeout", "1", "--", "true"), TIMED_OUT, "rdma-vm: the machine has not ended after 1 s, nor started")

    def test_nothing_is_left_behind(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with subprocess.Popen([sys.executable, RDMA_VM, "--vms", "2", "--", "sleep", "1000"]) as process:
                self.assertTrue(wait_until(lambda: len(children(process.pid)) == 2))
                machines = children(process.pid)
                process.send_signal(number)
                self.assertEqual(process.wait(20), -number)
                self.assertTrue(wait_until(lambda: not any(os.path.exists(f"/proc/{machine}/exe") for machine in machines)))

    @cases.smoke
    def test_mistakes(self):
        for arguments in (["--nics", "0", "--", "true"], ["--vms", "3", "--", "true"], ["--memory", "much", "--", "true"],
                          ["--env", "NOVALUE", "--", "true"], ["--timeout", "0", "--", "true"], ["--prepare", "--", "true"], []):
            done = tool(*arguments)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("error: ", done.stdout)

    @cases.smoke
    def test_says_what_is_missing(self):
        with tempfile.TemporaryDirectory() as empty:
            done = tool("--", "true", env={"PATH": empty, "KOLO_VM_CACHE": empty, "HOME": empty})
        self.assertEqual(done.returncode, SKIPPED, done.stdout)
        self.assertTrue(done.stdout.splitlines()[-1].startswith("rdma-vm: skipped: "), done.stdout)


if __name__ == "__main__":
    prepared = tool("--prepare")
    if prepared.returncode != 0:
        print(prepared.stdout, end="")
        sys.exit(prepared.returncode)
    sys.exit(cases.run([RdmaVm], sys.argv[1:]))
