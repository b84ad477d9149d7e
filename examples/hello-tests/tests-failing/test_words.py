import unittest

from hello.words import count


class WordsFail(unittest.TestCase):
    def test_case_counts_on_purpose_it_does_not(self):
        self.assertEqual(count("Be be"), [("Be", 1), ("be", 1)])
