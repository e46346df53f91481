#!/usr/bin/env python3
"""lm-eval's local-completions against the server on a real model, on a task of our own.

Usage: lm_eval_test.py PROGRAM MODEL
"""

import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import LIGHT, Server

PROGRAM, MODEL = '', ''

QUESTIONS = [
    ('The capital of France is', [' Paris', ' a banana', ' seventeen'], 0),
    ('Two plus two makes', [' green', ' four', ' yesterday'], 1),
    ('The sun rises in the', [' spoon', ' sentence', ' east'], 2),
    ('Water freezes into', [' ice', ' trousers', ' music'], 0),
    ('A week has seven', [' oceans', ' days', ' kings'], 1),
]
CHOICE_TASK = """
task: varve_choice
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
"""
GENERATE_TASK = """
task: varve_generate
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs:
  until: ["."]
  max_gen_toks: 8
metric_list:
  - metric: exact_match
"""


class LmEvalTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(PROGRAM, LIGHT, model=MODEL)
        cls.folder = tempfile.TemporaryDirectory()
        data = os.path.join(cls.folder.name, 'questions.json')
        with open(data, 'w', encoding='utf-8') as out:
            for question, choices, answer in QUESTIONS:
                row = {'question': question, 'choices': choices, 'answer': answer}
                out.write(json.dumps(row) + '\n')
        for name, task in (('choice', CHOICE_TASK), ('generate', GENERATE_TASK)):
            with open(os.path.join(cls.folder.name, name + '.yaml'), 'w', encoding='utf-8') as out:
                out.write(task.format(data=data))

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.folder.cleanup()

    def run_task(self, task):
        """lm-eval's results and its samples."""
        out = os.path.join(self.folder.name, 'out-' + task)
        environment = {**os.environ, 'HF_DATASETS_OFFLINE': '1', 'HF_HUB_OFFLINE': '1',
                       'HF_HOME': self.folder.name, 'OPENAI_API_KEY': 'none'}
        model = (f'model=any,base_url={self.server.url}/v1/completions,num_concurrent=2,'
                 'tokenizer_backend=remote,max_retries=1')
        run = subprocess.run(
            [sys.executable, '-m', 'lm_eval', 'run', '--model', 'local-completions',
             '--model_args', model, '--tasks', task, '--include_path', self.folder.name,
             '--output_path', out, '--log_samples'],
            env=environment, capture_output=True, text=True, timeout=280)
        self.assertEqual(run.returncode, 0, run.stderr[-3000:])
        results = glob.glob(out + '/**/results_*.json', recursive=True)
        samples = glob.glob(out + '/**/samples_*.jsonl', recursive=True)
        self.assertEqual((len(results), len(samples)), (1, 1))
        with open(results[0], encoding='utf-8') as f:
            result = json.load(f)['results'][task]
        with open(samples[0], encoding='utf-8') as f:
            return result, [json.loads(line) for line in f]

    def logprob(self, prompt, answer):
        """The answer's log-likelihood by one plain request."""
        body = {'prompt': prompt + answer, 'max_tokens': 0, 'echo': True, 'logprobs': 1}
        status, _, reply = self.server.request('POST', '/v1/completions', body)
        self.assertEqual(status, 200, reply)
        logprobs = reply['choices'][0]['logprobs']
        first = next(i for i, at in enumerate(logprobs['text_offset']) if at >= len(prompt))
        return sum(logprobs['token_logprobs'][first:])

    def test_log_likelihoods(self):
        result, samples = self.run_task('varve_choice')
        self.assertEqual(len(samples), len(QUESTIONS))
        self.assertGreaterEqual(result['acc,none'], 0.8)
        for sample in samples:
            doc = sample['doc']
            for choice, response in zip(doc['choices'], sample['filtered_resps']):
                self.assertAlmostEqual(float(response[0]), self.logprob(doc['question'], choice),
                                       delta=0.05)

    def test_generation(self):
        _, samples = self.run_task('varve_generate')
        self.assertEqual(len(samples), len(QUESTIONS))
        self.assertTrue(all(s['filtered_resps'][0].strip() for s in samples))
        self.assertTrue(all('.' not in s['filtered_resps'][0] for s in samples))


if __name__ == '__main__':
    MODEL = sys.argv.pop(2)
    PROGRAM = sys.argv.pop(1)
    unittest.main()
