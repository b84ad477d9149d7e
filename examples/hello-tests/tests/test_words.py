import unittest

from hello.words import count


class Words(unittest.TestCase):
    def test_the_most_frequent_comes_first(self):
        self.assertEqual(count("to be, or not to BE"), [("be", 2), ("to", 2), ("not", 1), ("or", 1)])

    def test_no_text_has_no_words(self):
        self.assertEqual(count(" ... "), [])
