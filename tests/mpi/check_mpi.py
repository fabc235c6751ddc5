#!/usr/bin/env python3
"""Runs MPI programs under kolo-mpirun, as its users do.

usage: check_mpi.py FAMILY KOLO_MPIRUN RANDOM_COLLECTIVES BEHAVIOUR RANDOM_NONBLOCKING NONBLOCKING MEMORY ARGUMENTS LARGE
                    COMMUNICATORS [LIBCUDA] [CASE...]

FAMILY is openmpi or mpich; LIBCUDA the path of a libcuda.so.1 for tests. The exit status is 77 where its mpirun is not installed; the last line says so.
"""
import sys

sys.dont_write_bytecode = True

import collections
import os
import re
import shutil
import subprocess
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir, folder) for folder in ("launchers", "support")]

import cases
import guard
import launchers
import seeds
from mpirun_job import BOUND, Given, Job

SKIPPED = 77
# The least of a job, each with some cases of every kind. An MPI polls while it waits: with more ranks than processors each message costs it a
# time slice, MPICH a third of a second for a nonblocking round.
ROUNDS, NONBLOCKING_ROUNDS = 100, 15
SECONDS = 0.5  # of a job, for more rounds
EVERY = "KOLO_TEST_ALL" in os.environ
LAUNCHERS = {"openmpi": launchers.OpenMpi, "mpich": launchers.Mpich}
# Of ranks with an odd number Kolo cannot start, so that the MPI does all.
ODD_RANKS_FAIL = ('export KOLO_TEST_PASSED_ON=1; case ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} in *[13579]) export KOLO_TRANSPORTS=none;; esac; '
                  'exec "$0" "$@"')


class Interposer(unittest.TestCase):
    def ok(self, job, said):
        self.assertEqual(job.status, 0, job.output)
        self.assertIn(said, job.output)
        return job

    def behaves(self, what, ranks=4, settings=None):
        return self.ok(Job(ranks, [Given.behaviour, what], settings), f"{what}: ok")

    def goes_on(self, what, ranks=4):
        return self.ok(Job(ranks, [Given.nonblocking, what]), f"{what}: ok").calls()

    def agrees(self, ranks, words, settings=None):
        """A job of one of the random programs, which ends its words with a seed."""
        job = Job(ranks, words, settings)
        self.assertEqual(job.status, 0, f"KOLO_TEST_SEED={seeds.run_seed()}\n{job.output}")
        return self.ok(job, "rounds agree")

    def random(self, ranks, settings=None):
        words = [str(ROUNDS), str(seeds.run_seed() + ranks), str(seeds.budget(SECONDS))]
        return self.agrees(ranks, [Given.random, *words], settings)

    def random_nonblocking(self, ranks, level, settings=None):
        words = [str(NONBLOCKING_ROUNDS), str(seeds.run_seed() + ranks), level, str(seeds.budget(SECONDS))]
        return self.agrees(ranks, [Given.random_nonblocking, *words], settings)

    @cases.smoke
    def test_random_collectives_agree_with_the_mpi_s_own(self):
        accelerated = collections.Counter()
        for ranks in (2, 4, 5):
            calls = self.random(ranks).calls()
            self.assertEqual(len(calls), 17, calls)
            accelerated.update({name: count for name, (count, _) in calls.items()})
            # On two ranks the halves have one rank each, and their collectives are passed on.
            passed = sum(count for _, count in calls.values())
            self.assertGreater(sum(count for count, _ in calls.values()), 2 * passed if ranks > 2 else 0, calls)
        for name, count in accelerated.items():
            self.assertGreater(count, 0, name)

    def test_a_job_of_one_rank_is_the_mpi_s_alone(self):
        self.assertEqual(sum(accelerated for accelerated, _ in self.random(1).calls().values()), 0)

    def test_where_kolo_cannot_start_on_some_ranks_the_program_runs_with_a_warning(self):
        job = self.agrees(4, ["/bin/sh", "-c", ODD_RANKS_FAIL, Given.random, "60", str(seeds.run_seed())])
        self.assertRegex(job.output, "kolo-mpi: Kolo did not start on rank . of 4, .*KOLO_TRANSPORTS=\"none\"")
        self.assertEqual(job.output.count("did not start"), 1, job.output)
        self.assertEqual(sum(accelerated for accelerated, _ in job.calls().values()), 0)

    def test_messages_go_on_while_ranks_wait_in_collectives(self):
        self.assertEqual(self.behaves("progress").calls(), {"MPI_Barrier": (8, 0), "MPI_Bcast": (8, 0)})

    @cases.smoke
    def test_errors_are_those_of_the_mpi(self):
        self.behaves("errors")

    def test_communicators_that_are_freed_take_with_them_what_was_theirs(self):
        self.behaves("lifetime", ranks=2)

    def test_threads_with_a_communicator_each(self):
        self.assertEqual(self.behaves("threads", ranks=2).calls(), {"MPI_Allreduce": (600, 0)})

    def test_scans_fold_in_the_usual_floating_point_mode(self):
        calls = self.behaves("modes").calls()
        self.assertEqual(calls, {name: (2, 0) for name in ("MPI_Scan", "MPI_Exscan", "MPI_Iscan", "MPI_Iexscan")})

    def test_programs_that_fork(self):
        self.behaves("fork")

    def test_programs_that_call_mpi_as_they_end(self):
        self.assertEqual(self.behaves("exit").calls(), {"MPI_Allreduce": (2, 0), "MPI_Iallreduce": (3, 0), "MPI_Allgather": (1, 0)})

    def test_data_at_absolute_addresses(self):
        calls = self.behaves("absolute").calls()
        self.assertEqual((len(calls), set(calls.values())), (12, {(1, 0)}), calls)

    def test_what_is_not_covered_is_passed_on_and_said(self):
        job = self.behaves("passing", settings={"KOLO_DEBUG": "debug"})
        self.assertEqual(job.calls()["MPI_Allreduce"], (0, 2))
        self.assertIn("kolo-mpi: MPI_Allreduce is left to the MPI underneath: not a predefined operation", job.output)

    def test_calls_by_the_profiling_names_are_accelerated(self):
        self.assertEqual(self.behaves("tool").calls(), {"MPI_Allreduce": (7, 0)})

    def test_mpi_abort_ends_the_job_while_others_wait(self):
        for what in ("abort", "abort-nonblocking"):
            job = Job(4, [Given.behaviour, what])
            self.assertEqual(job.status, 3, job.output)

    def counted(self, preload):
        """What the tool and the interposer count, with the tool in a place."""
        with tempfile.TemporaryDirectory() as folder:
            tool = self.compiled(folder, "mpicc", "counting_tool.c", "-shared", "-fPIC")
            script = f'export LD_PRELOAD="{preload.format(tool=tool)}"; exec "$0" "$@"'
            job = self.ok(Job(4, ["/bin/sh", "-c", script, Given.behaviour, "profiled"]), "profiled: ok")
        self.assertEqual(job.calls(), {"MPI_Allreduce": (5, 2), "MPI_Iallreduce": (1, 0), "MPI_Barrier": (1, 0)})
        return dict(re.findall(r"(\w+)=(\d+)", re.search("tool: (.*)", job.output).group(1)))

    def test_a_profiling_tool_before_the_interposer_counts_all_calls(self):
        self.assertEqual(self.counted("{tool}:$LD_PRELOAD"), {"inits": "1", "allreduces": "7", "nonblocking": "1", "barriers": "1", "waits": "1",
                                                                 "frees": "2"})

    def test_a_profiling_tool_behind_the_interposer_counts_what_is_passed_on(self):
        self.assertEqual(self.counted("$LD_PRELOAD:{tool}"), {"inits": "1", "allreduces": "2", "nonblocking": "0", "barriers": "0", "waits": "1",
                                                                 "frees": "1"})

    def test_programs_that_load_mpi_when_they_run(self):
        with tempfile.TemporaryDirectory() as folder:
            plugin = self.compiled(folder, "mpicc", "plugin.c", "-shared", "-fPIC")
            plugin = shutil.copy(plugin, os.path.join(folder, "plugin.so"))
            program = self.compiled(folder, "mpicc", "loads_mpi.c", "-Wl,--as-needed")
            linked = subprocess.run(["ldd", program], stdout=subprocess.PIPE, check=True, timeout=BOUND).stdout.decode()
            self.assertNotIn("libmpi", linked)
            calls = self.ok(Job(4, [program, "plugin", plugin]), "loaded: ok").calls()
            self.assertEqual(calls, {"MPI_Allreduce": (5, 0), "MPI_Iallreduce": (1, 0)})
            for how in ("local", "global"):  # the functions that they find are the MPI's own
                self.assertEqual(self.ok(Job(4, [program, how]), "loaded: ok").calls(), {})

    def test_processes_without_mpi_and_programs_that_bind_at_once(self):
        at_once = {"LD_BIND_NOW": "1"}
        self.assertIn("shells run\n", Job(1, ["/bin/sh", "-c", "echo shells run"], at_once).output)
        self.assertEqual(self.behaves("tool", settings=at_once).calls(), {"MPI_Allreduce": (7, 0)})
        with tempfile.TemporaryDirectory() as folder:
            plugin = shutil.copy(self.compiled(folder, "mpicc", "plugin.c", "-shared", "-fPIC"), os.path.join(folder, "plugin.so"))
            program = self.compiled(folder, "mpicc", "loads_mpi.c", "-Wl,--as-needed")
            job = Job(1, [program, "plugin", plugin], at_once)
        self.assertNotEqual(job.status, 0, job.output)
        self.assertIn("expected LD_BIND_NOW unset, or the MPI's library in LD_PRELOAD behind this one", job.output)

    @cases.smoke
    def test_random_nonblocking_collectives_agree_with_the_mpi_s_own(self):
        accelerated = collections.Counter()
        for ranks, level in ((2, "single"), (4, "multiple"), (5, "single")):
            calls = self.random_nonblocking(ranks, level).calls()
            accelerated.update({name: count for name, (count, _) in calls.items() if name.startswith("MPI_I")})
        self.assertEqual(len(accelerated), 16, accelerated)
        for name, count in accelerated.items():
            self.assertGreater(count, 0, name)

    def test_nonblocking_collectives_go_on_while_their_rank_is_in_a_receive(self):
        self.assertEqual(self.goes_on("receive")["MPI_Iallreduce"], (20, 0))

    def test_nonblocking_collectives_go_on_while_their_rank_calculates(self):
        self.assertEqual(self.goes_on("computes")["MPI_Iallreduce"], (2, 0))

    def test_messages_go_on_while_a_rank_waits_for_what_another_thread_executes(self):
        for ranks in (2, 3):
            self.assertEqual(self.goes_on("behind", ranks)["MPI_Iallreduce"], (10, 0))

    def test_more_nonblocking_collectives_than_kolo_has_requests(self):
        self.assertEqual(self.goes_on("many", ranks=2)["MPI_Iallreduce"], (20000, 0))

    def test_short_nonblocking_scans_are_accelerated_whatever_threads_the_program_has(self):
        calls = self.goes_on("scans")
        self.assertEqual((calls["MPI_Iscan"], calls["MPI_Iexscan"]), ((3, 1), (2, 1)))

    def test_nonblocking_collectives_of_two_communicators_in_any_order(self):
        self.assertEqual(self.goes_on("orders")["MPI_Iallreduce"], (40, 0))

    def test_blocking_collectives_and_messages_while_others_are_under_way(self):
        calls = self.goes_on("blocking")
        self.assertEqual((calls["MPI_Iallreduce"], calls["MPI_Bcast"]), ((40, 20), (20, 0)))

    def test_a_nonblocking_collective_that_is_a_communicator_s_first_waits_for_nobody(self):
        self.assertEqual(self.goes_on("first")["MPI_Iallreduce"], (0, 1))

    def test_nonblocking_collectives_that_are_only_tested_for(self):
        self.assertEqual(self.goes_on("tests")["MPI_Iallreduce"], (20, 0))

    def test_requests_that_are_freed_before_their_collectives_are_over(self):
        self.assertEqual(self.goes_on("freed")["MPI_Iallreduce"], (2, 0))

    def test_communicators_that_are_freed_before_their_collectives_are_over(self):
        self.assertEqual(self.goes_on("communicator")["MPI_Iallreduce"], (40, 0))

    def test_requests_are_the_mpi_s_own(self):
        self.assertEqual(self.goes_on("statuses")["MPI_Iallreduce"], (2, 0))

    def test_requests_serve_one_collective_after_the_other(self):
        self.assertEqual(self.goes_on("again")["MPI_Iallreduce"], (400, 0))

    def test_who_only_gives_has_done_so_when_the_call_returns(self):
        for ranks in (2, 5):
            self.assertEqual(self.goes_on("gives", ranks)["MPI_Ibcast"], (40, 0))

    def test_threads_that_start_and_complete_nonblocking_collectives(self):
        self.assertEqual(self.goes_on("threads", ranks=2)["MPI_Iallreduce"], (600, 0))

    def test_errors_of_nonblocking_collectives_come_when_they_are_completed(self):
        self.goes_on("errors")

    def takes(self, what, ranks=3):
        return self.ok(Job(ranks, [Given.arguments, what]), f"{what}: ok").calls()

    def test_arrays_that_are_gone_when_a_nonblocking_call_has_returned(self):
        calls = self.takes("arrays")
        self.assertEqual(len(calls), 6, calls)
        self.assertEqual({passed for _, passed in calls.values()}, {0}, calls)

    def test_reduce_scatters_in_place_leave_what_lies_behind_the_result(self):
        calls = self.takes("tails")
        self.assertEqual({calls["MPI_Reduce_scatter"], calls["MPI_Reduce_scatter_block"]}, {(2, 0)}, calls)
        self.assertEqual({calls["MPI_Ireduce_scatter"], calls["MPI_Ireduce_scatter_block"]}, {(1, 1)}, calls)

    def test_calls_that_are_refused_on_one_rank_are_made_up_for(self):
        for ranks in (2, 3):
            self.takes("refused", ranks)

    def test_data_between_the_places_of_others(self):
        self.assertEqual({passed for _, passed in self.takes("between").values()}, {0})

    def test_the_same_buffer_twice_on_one_rank(self):
        self.takes("twice")

    def test_lengths_that_differ_fail_on_all_ranks(self):
        job = self.ok(Job(3, [Given.arguments, "lengths"]), "lengths: ok")
        self.assertIn("rank 0 gives itself 8 bytes and takes 4, which MPI forbids", job.output)

    def test_datatypes_that_all_constructors_make(self):
        job = self.ok(Job(3, [Given.large, "types"]), "types: ok")
        self.assertEqual(job.calls(), {"MPI_Bcast": (30, 0), "MPI_Ibcast": (30, 0)})

    def test_collectives_with_large_counts(self):
        job = self.ok(Job(3, [Given.large, "counts"]), "counts: ok")
        if "no large counts" in job.output:
            self.skipTest("the MPI is of version 3")
        calls = job.calls()
        self.assertEqual(len(calls), 32, calls)
        self.assertEqual({passed for _, passed in calls.values()}, {0}, calls)

    def test_elements_of_more_than_two_gib(self):
        job = self.ok(Job(2, [Given.large, "element"], bound=4 * BOUND), "element: ok")
        self.assertEqual(job.calls(), {"MPI_Bcast": (1, 0)})

    def lives(self, what, ranks=4, after="0"):
        """A job with communicators of its own; after: KOLO_MPI_COMM_AFTER, or None."""
        return self.ok(Job(ranks, [Given.communicators, what], {"KOLO_MPI_COMM_AFTER": after}), f"{what}: ok")

    def test_freeing_a_communicator_waits_for_nobody(self):
        for what in ("freed", "given", "disconnected"):
            for ranks in (2, 4):
                self.assertEqual(self.lives(what, ranks).counterparts(), 6)

    def test_freeing_a_communicator_waits_for_no_nonblocking_collective(self):
        self.assertEqual(self.lives("pending").calls()["MPI_Iallreduce"], (40, 0))

    def test_communicators_that_are_left_to_the_end_wait_until_all_are_there(self):
        self.assertEqual(self.lives("finalized", ranks=3).counterparts(), 3)

    def test_a_communicator_is_freed_while_a_thread_waits_for_its_collective(self):
        self.assertEqual(self.lives("raced", ranks=2).calls()["MPI_Iallreduce"], (100, 0))

    def test_communicators_that_are_hardly_used_have_no_counterpart(self):
        for what, ranks in (("many", 4 if EVERY else 2), ("threads", 2)):
            self.assertEqual(self.lives(what, ranks, after=None).counterparts(), 1)

    def test_communicators_that_are_used_get_a_counterpart(self):
        for ranks in (2, 3):
            job = self.lives("grown", ranks, after=None)
            self.assertEqual(job.calls(), {"MPI_Allreduce": (144, 256), "MPI_Barrier": (0, 3)})
            self.assertEqual(job.counterparts(), 2)
        job = self.lives("large", 2, after=None)
        self.assertEqual(job.calls(), {"MPI_Gather": (6, 2), "MPI_Allreduce": (6, 2)})

    def test_what_counts_before_a_communicator_gets_its_counterpart(self):
        job = self.lives("mixed", 3, after="10")
        self.assertEqual(job.calls(), {"MPI_Bcast": (0, 3), "MPI_Allreduce": (2, 1), "MPI_Iallreduce": (0, 6)})
        job = self.lives("rooted", 3, after="10")
        self.assertEqual(job.calls(), {"MPI_Bcast": (0, 100)})  # its root waits for nobody

    def test_who_only_gives_waits_for_nobody_the_first_time_either(self):
        for ranks in (2, 3):
            job = self.ok(Job(ranks, [Given.communicators, "gives"]), "gives: ok")
            self.assertEqual({passed for name, (_, passed) in job.calls().items()}, {0}, job.calls())

    def test_calls_that_the_mpi_refuses_on_one_rank_do_not_count(self):
        self.assertEqual(self.lives("refused", after="7").counterparts(), 2)

    def test_ranks_agree_on_when_a_communicator_gets_its_counterpart(self):
        script = 'export KOLO_MPI_COMM_AFTER=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; exec "$0" "$@"'
        job = self.ok(Job(4, ["/bin/sh", "-c", script, Given.communicators, "grown"]), "grown: ok")
        self.assertEqual(job.calls(), {"MPI_Allreduce": (397, 3), "MPI_Barrier": (0, 3)})
        for wrong in ("soon", "-1", "7 ", ""):
            job = self.ok(Job(2, [Given.communicators, "grown"], {"KOLO_MPI_COMM_AFTER": wrong}), "grown: ok")
            said = f'KOLO_MPI_COMM_AFTER is "{wrong}", expected a number of collectives' in job.output
            self.assertEqual(said, wrong != "", job.output)  # an empty one is not set
            self.assertEqual(job.calls()["MPI_Allreduce"], (144, 256))

    def keeps(self, what, ranks=2, settings=None):
        """The numbers of blocks of memory, and of registrations, on rank 0."""
        return self.ok(Job(ranks, [Given.memory, what], settings), f"{what}: ok").memory()

    @cases.smoke
    def test_memory_of_the_mpi_s_is_used_where_it_is(self):
        self.assertEqual(self.keeps("before"), (3, 2))  # of one segment with two communicators

    def test_memory_that_comes_after_the_first_collective_is_used_where_it_is(self):
        self.assertEqual(self.keeps("later"), (3, 1))

    def test_memory_that_some_ranks_have(self):
        self.assertEqual(self.keeps("some", ranks=4), (601, 3))  # at first, and when rank 0 has more, and rank 1; not of rank 2's last

    def test_memory_that_comes_after_the_first_collective_and_is_used_by_nonblocking_ones_only(self):
        self.assertEqual(self.keeps("nonblocking"), (3, 1))

    def test_memory_that_is_used_by_nonblocking_collectives_in_which_some_only_give(self):
        self.assertEqual(self.keeps("rooted"), (2, 1))

    def test_memory_that_some_ranks_have_while_several_collectives_are_under_way(self):
        self.assertEqual(self.keeps("overlapping", ranks=4), (601, 3))

    def test_blocks_of_memory_come_and_go(self):
        self.keeps("blocks")

    def test_memory_of_windows_is_used_where_it_is(self):
        for what in ("window", "shared"):
            self.assertEqual(self.keeps(what), (1, 1))

    def test_windows_come_and_go(self):
        self.assertEqual(self.keeps("windows", ranks=3), (20, 20))

    def test_freeing_a_window_waits_for_no_collective_of_its_communicator(self):
        for ranks in (2, 3):
            job = self.ok(Job(ranks, [Given.memory, "apart"]), "apart: ok")
            self.assertEqual(job.memory(), (8, 8))
            self.assertRegex(job.output, "the same addresses in [1-8] rounds")

    def test_windows_where_kolo_cannot_start(self):
        job = self.ok(Job(4, ["/bin/sh", "-c", ODD_RANKS_FAIL, Given.memory, "windows"]), "windows: ok")
        self.assertEqual(job.memory(), (0, 0), job.output)

    def test_ordinary_memory_goes_through_copies(self):
        self.assertEqual(self.keeps("ordinary"), (0, 0))

    def test_memory_of_the_mpi_s_where_kolo_cannot_start(self):
        job = self.ok(Job(4, ["/bin/sh", "-c", ODD_RANKS_FAIL, Given.memory, "some"]), "some: ok")
        self.assertEqual(job.output.count("did not start"), 1, job.output)
        self.assertEqual(job.memory()[1], 0, job.output)

    def test_memory_of_the_mpi_s_in_a_job_of_one_rank(self):
        self.assertEqual(self.keeps("some", ranks=1), (0, 0))

    def test_memory_of_the_mpi_s_in_fortran(self):
        with tempfile.TemporaryDirectory() as folder:
            job = self.ok(Job(2, [self.compiled(folder, "mpifort", "memory_in_fortran.f90", "-fcray-pointer")]), "fortran: ok")
        self.assertEqual(job.memory(), (4, 2))

    def on_gpu(self, run):
        """run(settings) is a job most of whose buffers are in a GPU's memory."""
        if Given.libcuda is None:
            self.skipTest("the build has no CUDA")
        job = run({"KOLO_TEST_LIBCUDA": Given.libcuda})
        self.assertGreater(int(re.search(r"buffers of GPUs that were copied: (\d+)", job.output).group(1)), 15, job.output)
        return job

    def test_buffers_in_the_memory_of_a_gpu(self):
        for ranks in (1, 2, 4):
            self.on_gpu(lambda settings, ranks=ranks: self.random(ranks, settings))

    def test_buffers_in_the_memory_of_a_gpu_where_kolo_cannot_start(self):
        words = ["/bin/sh", "-c", ODD_RANKS_FAIL, Given.random, "60", str(seeds.run_seed())]
        job = self.on_gpu(lambda settings: self.agrees(4, words, settings))
        self.assertEqual(sum(accelerated for accelerated, _ in job.calls().values()), 0)

    def test_nonblocking_collectives_in_the_memory_of_a_gpu(self):
        for ranks, level in ((2, "multiple"), (4, "single")):
            self.on_gpu(lambda settings, ranks=ranks, level=level: self.random_nonblocking(ranks, level, settings))
        calls = self.on_gpu(lambda settings: self.ok(Job(4, [Given.nonblocking, "gpu"], settings), "gpu: ok")).calls()
        self.assertEqual(calls["MPI_Iallreduce"], (10, 10))

    def compiled(self, folder, compiler, source, *options):
        """The program that the family's compiler makes of a source beside this file."""
        command = f"{compiler}.{Given.family}"
        if shutil.which(command) is None or (compiler == "mpifort" and shutil.which("gfortran") is None):
            self.skipTest(f"there is no {command}, or no compiler for it")
        program = os.path.join(folder, "program")
        subprocess.run([command, "-w", "-O1", *options, os.path.join(HERE, source), "-o", program, "-lm"], cwd=folder, check=True, timeout=BOUND)
        return program

    def test_fortran_by_all_three_interfaces(self):
        with tempfile.TemporaryDirectory() as folder:
            job = self.ok(Job(4, [self.compiled(folder, "mpifort", "in_fortran.f90")]), "fortran: ok")
        self.assertEqual(job.calls(), {"MPI_Barrier": (3, 0), "MPI_Bcast": (1, 0), "MPI_Allreduce": (5, 0), "MPI_Iallreduce": (1, 0),
                                       "MPI_Iallgatherv": (1, 0), "MPI_Ibcast": (1, 0), "MPI_Ibarrier": (1, 0)})

    @cases.smoke
    def test_a_small_application_in_c(self):
        with tempfile.TemporaryDirectory() as folder:
            calls = self.ok(Job(4, [self.compiled(folder, "mpicc", "conjugate_gradient.c")]), "solved after").calls()
        self.assertGreater(calls["MPI_Iallreduce"][0], 100)
        self.assertEqual({passed for _, passed in calls.values()}, {0}, calls)

    def test_a_small_application_in_fortran(self):
        with tempfile.TemporaryDirectory() as folder:
            calls = self.ok(Job(4, [self.compiled(folder, "mpifort", "heat.f90")]), "solved").calls()
        self.assertGreater(calls["MPI_Allreduce"][0], 100)
        self.assertEqual({passed for _, passed in calls.values()}, {0}, calls)

    def test_hpcc_verifies_as_it_does_alone(self):
        program, sample = shutil.which("hpcc"), "/usr/share/doc/hpcc/examples/_hpccinf.txt"
        if program is None or not os.path.exists(sample):
            self.skipTest("there is no hpcc, or not its sample of an input (package hpcc)")
        libraries = subprocess.run(["ldd", program], stdout=subprocess.PIPE, check=True, timeout=BOUND).stdout.decode()
        if ("libmpich" in libraries) != (Given.family == "mpich"):
            self.skipTest(f"hpcc is another MPI's program, not {Given.family}'s")
        alone, _ = self.verified_by_hpcc(program, sample, Given.launcher.program)
        verified, calls = self.verified_by_hpcc(program, sample, Given.wrapper)
        self.assertEqual(verified, alone)
        self.assertGreaterEqual(len(verified), 15, verified)
        for name in ("MPI_Bcast", "MPI_Allreduce", "MPI_Alltoall", "MPI_Barrier"):
            self.assertGreater(calls[name][0], 10, calls)

    def verified_by_hpcc(self, program, sample, wrapper):
        """The lines of its output that say whether results are right; the calls."""
        with open(sample, encoding="ascii") as file:
            text = file.read()
        for line, value in ((r"\d+(?= +Ns)", "200"), (r"\d+(?= +NBs)", "32"), (r"\d+(?= +Ps)", "1"), (r"\d+(?= +Qs)", "2")):
            text, done = re.subn(rf"(?m)^{line}", value, text)
            self.assertEqual(done, 1, line)
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "hpccinf.txt"), "w", encoding="ascii") as file:
                file.write(text)
            job = Job(2, ["/bin/sh", "-c", f"cd {folder} && exec {program}"], wrapper=wrapper)
            self.assertEqual(job.status, 0, job.output)
            with open(os.path.join(folder, "hpccoutf.txt"), encoding="ascii") as file:
                output = file.read()
        said = r"Found \d+ errors|tests? completed and|\|\|Ax-b|Solution Validates|^Success=|^PTRANS_residual=|_Errors(Fraction)?="
        return [line for line in output.splitlines() if re.search(said, line)], job.calls()

    def test_kolo_mpirun_says_what_it_cannot_use(self):
        job = Job(1, ["true"], {"KOLO_MPIRUN": "/nowhere/mpirun"})
        self.assertNotEqual(job.status, 0)
        self.assertIn("/nowhere/mpirun --version failed", job.output)
        job = Job(1, ["true"], {"KOLO_MPIRUN": "env"})
        self.assertNotEqual(job.status, 0)
        self.assertIn("is of an unknown MPI, expected that of Open MPI, MPICH or Intel MPI", job.output)

    def test_kolo_mpirun_keeps_what_was_to_be_preloaded(self):
        job = Job(1, ["/bin/sh", "-c", "echo loads $LD_PRELOAD"], {"LD_PRELOAD": "libm.so.6"})
        self.assertRegex(job.output, rf"loads \S*libkolo-mpi-{Given.family}\.so:libm\.so\.6\n")


def run(names):
    reason = Given.launcher.missing()
    if reason is not None:
        print(f"not tried: {reason}")
        return SKIPPED
    return cases.run([Interposer], names)


def main():
    if len(sys.argv) < 11:
        sys.exit(__doc__)
    (Given.family, Given.wrapper, Given.random, Given.behaviour, Given.random_nonblocking, Given.nonblocking,
     Given.memory, Given.arguments, Given.large, Given.communicators, *names) = sys.argv[1:]
    if names and "libcuda.so" in names[0]:
        Given.libcuda = os.path.abspath(names.pop(0))
    Given.launcher = LAUNCHERS[Given.family]()
    return guard.run_guarded(lambda: run(names))


if __name__ == "__main__":
    sys.exit(main())
