"""The differential suite as tests: one for each number of ranks."""

import os
import unittest

import differential
import ranks
from cases import smoke
import seeds

EVERY = "KOLO_TEST_ALL" in os.environ


class Differential(unittest.TestCase):
    def check(self, count):
        with self.subTest(KOLO_TEST_SEED=seeds.run_seed()):
            ranks.run(
                self, differential.run, count, seeds.run_seed() + count, EVERY, seconds=3600 if EVERY else 200
            )

    def test_1_rank(self):
        self.check(1)

    @smoke
    def test_2_ranks(self):
        self.check(2)

    def test_3_ranks(self):
        self.check(3)

    def test_4_ranks(self):
        self.check(4)

    def test_5_ranks(self):
        self.check(5)
