"""The catalogue of datasets: page, licence, citation and files of each."""

from __future__ import annotations

from dataclasses import dataclass

from varangian.core.errors import unknown


@dataclass(frozen=True)
class Original:
    """One file as its owner distributes it; ``checksum`` is ``"md5:..."`` or ``"sha256:..."``.

    It is None where no checksum is known. The first download is then trusted: its SHA-256 is written beside it, and
    every later read is checked against that record.
    """

    name: str
    url: str
    checksum: str | None


@dataclass(frozen=True)
class Dataset:
    """One dataset: ``originals`` can be downloaded; if there are none, ``by_hand`` says how to get it.

    ``npz`` names a single file that can be read instead, with the arrays that ``arrays`` lists.
    """

    name: str
    title: str
    page: str
    licence: str
    citation: str
    split: str
    npz: str = ""
    arrays: str = ""
    originals: tuple[Original, ...] = ()
    by_hand: str = ""


_DIGIT_ARRAYS = "x_train (N,28,28) uint8, y_train 0..9, x_test, y_test"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/"

HUMAN_ACTIVITY = Dataset(
    name="human-activity",
    title="Human Activity Recognition Using Smartphones",
    page="https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones",
    licence="CC BY 4.0",
    citation="Anguita, Ghio, Oneto, Parra and Reyes-Ortiz: A Public Domain Dataset for Human Activity "
    "Recognition Using Smartphones. ESANN 2013. doi:10.24432/C54S4K",
    split="none kept: all 30 people are joined, and a study splits within each person",
    npz="uci_har_561.npz",
    arrays="x (N,561) float in [-1,1], y 1..6, subject 1..30",
    originals=(
        Original(
            "human+activity+recognition+using+smartphones.zip",
            "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
            "sha256:c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
        ),
    ),
)

MNIST = Dataset(
    name="mnist",
    title="MNIST handwritten digits",
    page="http://yann.lecun.com/exdb/mnist/",
    licence="CC BY-SA 3.0, as its mirrors state it",
    citation="LeCun, Bottou, Bengio and Haffner: Gradient-Based Learning Applied to Document Recognition. "
    "Proceedings of the IEEE 86(11), 1998",
    split="as distributed: 60,000 training and 10,000 test images",
    npz="mnist.npz",
    arrays=_DIGIT_ARRAYS,
    originals=(
        Original(
            "train-images-idx3-ubyte.gz",
            _MNIST + "train-images-idx3-ubyte.gz",
            "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
        ),
        Original(
            "train-labels-idx1-ubyte.gz",
            _MNIST + "train-labels-idx1-ubyte.gz",
            "md5:d53e105ee54ea40749a09fcbcd1e9432",
        ),
        Original(
            "t10k-images-idx3-ubyte.gz",
            _MNIST + "t10k-images-idx3-ubyte.gz",
            "md5:9fb629c4189551a2d022fa330f9573f3",
        ),
        Original(
            "t10k-labels-idx1-ubyte.gz",
            _MNIST + "t10k-labels-idx1-ubyte.gz",
            "md5:ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
)

MNIST_M = Dataset(
    name="mnist-m",
    title="MNIST-M in grey: handwritten digits on photographs",
    page="http://yaroslav.ganin.net/",
    licence="not stated; the backgrounds are from BSDS500, for non-commercial research",
    citation="Ganin et al.: Domain-Adversarial Training of Neural Networks. JMLR 17(59), 2016",
    split="a subset: 20,000 of the training and 4,000 of the test images, turned to grey",
    npz="mnist_m_gray28_24k.npz",
    arrays=_DIGIT_ARRAYS,
    by_hand="take MNIST-M from its page, turn it to grey at 28x28",
)

KAGGLE_DIGITS = Dataset(
    name="synthetic-digits-kaggle",
    title="Synthetic Digits: printed digits on photographs",
    page="https://www.kaggle.com/datasets/prasunroy/synthetic-digits",
    licence="see its page (an account is needed to download it)",
    citation="Roy, Ghosh, Bhattacharya and Pal: Effects of Degradations on Deep Neural Network "
    "Architectures. arXiv:1807.10108, 2018",
    split="as distributed: imgs_train (10,000) and imgs_valid (2,000, used for testing)",
    by_hand="download the archive from its page and unpack the folders imgs_train/ and imgs_valid/",
)

USPS = Dataset(
    name="usps",
    title="USPS handwritten digits",
    page="https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps",
    licence="not stated; for research",
    citation="Hull: A Database for Handwritten Text Recognition Research. IEEE PAMI 16(5), 1994",
    split="as distributed: 7,291 training and 2,007 test images, enlarged from 16x16 to 28x28",
    npz="usps.npz",
    arrays="x_train (N,16,16) float in [0,1], y_train 0..9, x_test, y_test",
    originals=(
        Original("usps.bz2", _LIBSVM + "usps.bz2", "md5:ec16c51db3855ca6c91edd34d0e9b197"),
        Original("usps.t.bz2", _LIBSVM + "usps.t.bz2", "md5:8ea070ee2aca1ac39742fdd1ef5ed118"),
    ),
)

SCHOOL = Dataset(
    name="school",
    title="Exam scores in 139 London schools (ILEA)",
    page="https://github.com/jiayuzhou/MALSAR",
    licence="not stated; collected by the Inner London Education Authority, 1985-1987",
    citation="Goldstein: Multilevel Modelling of Survey Data. The Statistician 40(2), 1991; 28 attributes "
    "as in Argyriou, Evgeniou and Pontil: Convex Multi-Task Feature Learning. Machine Learning 73, 2008",
    split="none kept: a study splits within each school",
    npz="school.npz",
    arrays="x (N,28) float, y (N,) float, task 1..139",
    by_hand="take data/school.mat from its page, stack the schools",
)

DATASETS = (HUMAN_ACTIVITY, MNIST, MNIST_M, KAGGLE_DIGITS, USPS, SCHOOL)


def dataset(name: str) -> Dataset:
    """The dataset with that name; the error for an unknown name suggests the nearest known one.

    >>> dataset("usps").title
    'USPS handwritten digits'
    """
    for entry in DATASETS:
        if entry.name == name:
            return entry
    raise unknown("dataset", name, [entry.name for entry in DATASETS])


def how_to_get(entry: Dataset, folder: str) -> str:
    """One phrase: how to get the dataset and where to put it.

    >>> how_to_get(USPS, "/data").split(" (")[0]
    'run `varangian data get usps`'
    """
    if entry.originals:
        files = ", ".join(original.name for original in entry.originals)
        return f"run `varangian data get {entry.name}` (or put {files} from {entry.page} in {folder})"
    if entry.npz:
        save = f"and save it as {entry.npz} ({entry.arrays})"
        return f"{entry.by_hand} {save} in {folder}; its page is {entry.page}"
    return f"{entry.by_hand} in {folder}; its page is {entry.page}"
