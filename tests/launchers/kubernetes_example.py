"""The Kubernetes job of src/bootstrap/README.md: its parts fit together, and its ranks run as shells. No cluster is needed."""
import os
import unittest

from every_launcher import EveryLauncher, Programs
from launchers import Shells, free_ports
from readme import code_blocks, yaml_documents

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


class KubernetesExample(unittest.TestCase):
    launcher = Shells()
    start = EveryLauncher.start
    expect_nothing_left = EveryLauncher.expect_nothing_left

    def setUp(self):
        text = next(block for block in code_blocks(Programs.readme, "yaml") if "kind: Job" in block)
        self.service, self.job = yaml_documents(text)
        self.pod = self.job["spec"]["template"]["spec"]
        self.container = self.pod["containers"][0]

    def variables(self):
        """{name: value} as a shell would write it; the index of the pod is $r."""
        values = {}
        for each in self.container["env"]:
            if "value" in each:
                values[each["name"]] = each["value"]
            elif each["valueFrom"].get("fieldRef", {}).get("fieldPath") == INDEX:
                values[each["name"]] = "$r"
            else:
                self.assertEqual(sorted(each["valueFrom"]["secretKeyRef"]), ["key", "name"])
                values[each["name"]] = "from-a-secret"
        return values

    def test_its_parts_fit_together(self):
        name, spec = self.job["metadata"]["name"], self.job["spec"]
        self.assertEqual(self.service["spec"], {"clusterIP": "None", "selector": {"job-name": name}})
        self.assertEqual((self.job["apiVersion"], spec["completionMode"]), ("batch/v1", "Indexed"))
        self.assertEqual(self.pod["subdomain"], self.service["metadata"]["name"])
        self.assertEqual(spec["completions"], spec["parallelism"])
        variables = self.variables()
        self.assertEqual((variables["KOLO_RANK"], variables["KOLO_SIZE"]), ("$r", spec["completions"]))
        self.assertRegex(variables["KOLO_ROOT"], rf"^{name}-0\.{self.pod['subdomain']}:\d+$")

    def test_its_ranks_run_with_these_variables(self):
        variables = self.variables()
        variables["KOLO_ROOT"] = f"127.0.0.1:{free_ports()}"  # its names are those of a cluster
        each = " ".join(f"{name}={value}" for name, value in variables.items())
        path = {"PATH": os.pathsep.join([os.path.dirname(Programs.perf), os.environ["PATH"]])}
        job = self.start(int(self.job["spec"]["completions"]), self.container["command"], path, each=each)
        self.assertEqual(job.ended(), 0, job.output())
        for once in (": 4 ranks (processes)", "# Wrong values: 0 OK"):
            self.assertEqual(job.output().count(once), 1, job.output())
        self.expect_nothing_left(job)

    def test_another_reader_of_yaml_understands_the_same(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("PyYAML is not installed")
        text = next(block for block in code_blocks(Programs.readme, "yaml") if "kind: Job" in block)
        theirs = list(yaml.load_all(text, yaml.BaseLoader))
        self.assertEqual(theirs, [self.service, self.job])
