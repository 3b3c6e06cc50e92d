"""What cells do to files, by name: each sets `result`, and works in a small tree of files."""

# Cells as people write them.
# ruff: noqa: E501

from __future__ import annotations

PRELUDE = """
import bz2, csv, errno, glob, gzip, io, json, logging, lzma, os, pickle, shutil, stat, tarfile
import tempfile, zipfile
import numpy as np
from pathlib import Path

def walked(folder, **kwargs):
    return sorted((top, sorted(folders), sorted(files)) for top, folders, files in os.walk(folder, **kwargs))

def refused(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except OSError as error:
        return type(error).__name__, error.filename and str(error.filename), error.errno

def read(path):
    with open(path) as file:
        return file.read()
"""

FLOWS = {
    "below folders that are open": """
here, below = os.open(".", os.O_RDONLY), os.open("folder", os.O_RDONLY)
with open("zz.txt", "w", opener=lambda path, flags: os.open(path, flags, dir_fd=here)) as file:
    file.write("opened")
os.close(os.open("made.txt", os.O_WRONLY | os.O_CREAT, dir_fd=below))
os.mkdir("new", dir_fd=below)
os.symlink("made.txt", "l", dir_fd=below)
os.replace("zz.txt", "moved.txt", src_dir_fd=here, dst_dir_fd=below)
os.rename("real.txt", b"away.txt", src_dir_fd=here)
os.utime(path="in.txt", times=(1, 2), dir_fd=below)
os.remove("in.txt", dir_fd=below)
result = [
    sorted(os.listdir(below)), sorted(e.name for e in os.scandir(here)), read("folder/moved.txt"),
    os.stat("moved.txt", dir_fd=below).st_size, os.readlink("l", dir_fd=below),
    sorted(glob.glob("*.txt", root_dir="folder", dir_fd=here)), refused(os.rmdir, "nope", dir_fd=here),
    os.supports_dir_fd >= {os.open, os.stat}, refused(os.rename, "nope", "x", src_dir_fd=below),
]
os.chdir(below)
shutil.rmtree("er", dir_fd=os.open("../deep", os.O_RDONLY))
result += [sorted(os.listdir()), os.listdir("../deep"), os.path.basename(os.getcwd())]
os.chdir(here)
""",
    "arguments by name, and wrong ones": """
def told(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, str(error)

os.close(os.open(path="a.txt", flags=os.O_WRONLY | os.O_CREAT, mode=0o600))
os.replace(src="a.txt", dst=Path("b.txt"))
open(file="c.txt", mode="w").close()
shutil.copyfile(src=b"real.txt", dst=b"d.txt")
result = sorted(os.listdir(path=".")), [
    told(open), told(open, "x", bad=1), told(os.open, "x"), told(os.open, "x", "r"), told(os.stat),
    told(os.listdir, ".", 1), told(os.mkdir), told(os.rename, "x"),
    told(os.chdir), told(os.getcwd, 1), told(shutil.copyfile, "x"), told(shutil.rmtree),
    told(Path("none").unlink), told(tempfile.NamedTemporaryFile, dir="none")[0],
]
""",
    "written and read": """
with open("a.txt", "w") as file:
    file.write("one\\ntwo\\n")
    name = file.name, file.mode
result = name, read("a.txt"), list(open("a.txt", "rb")), os.path.getsize("a.txt")
""",
    "every mode": """
open("a.txt", "w").write("12345")
with open("a.txt", "r+") as file:
    file.write("A")
with open("a.txt", "a+") as file:
    file.write("6")
    file.seek(0)
    seen = file.read()
open("new.txt", "x").close()
with open("raw.bin", "wb", buffering=0) as raw:
    raw.write(b"raw")
    names = raw.name, open("raw.bin", "rb").name
result = seen, names, refused(open, "a.txt", "x"), refused(open, "b.txt", "r+"), refused(open, "b.txt")
""",
    "a real log goes on": """
with open("real.txt", "a") as file:
    file.write("more\\n")
    position = file.tell()
with open("folder/in.txt", "r+b") as file:
    file.seek(1)
    file.write(b"N")
result = position, read("real.txt"), read("folder/in.txt"), os.path.getsize("real.txt")
""",
    "no such folder": """
result = (
    refused(open, "absent/a.txt", "w"), refused(os.mkdir, "absent/a"), refused(os.mkdir, "folder"),
    refused(os.makedirs, "folder"), refused(os.rmdir, "folder"), refused(os.rmdir, "absent"),
    refused(os.remove, "absent"), refused(os.rename, "absent", "x"), refused(os.listdir, "absent"),
    refused(os.stat, "absent/x"), refused(open, "folder", "w"), refused(os.listdir, "real.txt"),
    refused(Path("absent").unlink), Path("absent").unlink(missing_ok=True), refused(os.chdir, "absent"),
    refused(open, "real.txt/x", "w"), refused(os.mkdir, "real.txt"), refused(shutil.rmtree, "absent"),
    refused(os.rename, "deep", "folder"), refused(os.symlink, "x", "real.txt"),
    refused(os.truncate, "absent", 3), refused(os.link, "absent", "x"), refused(shutil.rmtree, "real.txt"),
)
""",
    "the same once something is written": """
open("first", "w").close()
result = (
    refused(open, "absent/a.txt", "w"), refused(os.mkdir, "absent/a"), refused(os.mkdir, "folder"),
    refused(os.rmdir, "folder"), refused(os.remove, "absent"), refused(os.rename, "absent", "x"),
    refused(os.listdir, "absent"), refused(os.stat, "absent/x"), refused(os.scandir, "absent"),
    refused(os.chdir, "absent"), refused(open, "real.txt/x"), refused(open, ""), refused(os.stat, ""),
    refused(os.readlink, "first"), refused(shutil.copy, "absent", "first"), os.access("first", os.W_OK),
)
""",
    "folders": """
os.makedirs("runs/1/checkpoints", exist_ok=True)
os.makedirs("runs/1/checkpoints", exist_ok=True)
for i in range(3):
    Path(f"runs/1/checkpoints/{i}.txt").write_text(str(i))
Path("folder/new.txt").write_text("new")
result = (
    sorted(os.listdir("folder")), sorted(glob.glob("runs/**/*.txt", recursive=True)),
    walked("."), sorted(map(str, Path().rglob("*"))), sorted(glob.glob("f*/*")),
    sorted((e.name, e.path, e.is_dir(), e.is_file(), e.stat().st_size) for e in os.scandir("folder")),
    sorted(p.name for p in Path("folder").iterdir()), sorted(map(str, Path("runs").glob("*/*"))),
    os.path.isdir("runs/1"), os.path.isfile("runs/1"), walked("folder", topdown=False),
)
with os.scandir("folder") as entries:
    result += (len(list(entries)),)
""",
    "pathlib": """
path = Path("new") / "x.txt"
path.parent.mkdir()
path.touch()
path.write_bytes(b"12")
moved = path.rename(path.with_name("y.txt"))
result = [path.exists(), moved.exists(), str(moved), moved.read_text(), moved.stat().st_size]
moved.unlink()
path.parent.rmdir()
result += [Path("new").exists(), Path("real.txt").is_file(), Path("folder").is_dir()]
Path("real.txt").replace("folder/in.txt")
Path("l").symlink_to("folder/in.txt")
result += [Path("l").read_text(), Path("l").is_symlink(), str(os.readlink("l")), Path("l").resolve().name]
result += [Path("deep/er").samefile("deep/er"), [str(p) for p in Path("deep").rglob("*")]]
with Path("l").open("a") as file:
    file.write("+")
result.append(read("folder/in.txt"))
""",
    "a new file in place of a real one": """
Path("real.txt.tmp").write_text("new")
os.replace("real.txt.tmp", "real.txt")
with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
    file.write("newer")
os.replace(file.name, "folder/in.txt")
result = read("real.txt"), read("folder/in.txt"), sorted(os.listdir("."))
""",
    "shutil": """
result = [
    shutil.copy("real.txt", "folder"), shutil.copy2("real.txt", "b.txt"), shutil.copyfile("b.txt", "c"),
    shutil.copytree("folder", "copied"), shutil.move("b.txt", "copied"), shutil.move("folder", "moved"),
    refused(shutil.copytree, "copied", "moved"), read("moved/in.txt"), os.path.exists("folder"),
]
shutil.copytree("copied", "moved", dirs_exist_ok=True)
shutil.rmtree("copied")
shutil.rmtree("deep")
shutil.rmtree("nothing", ignore_errors=True)
os.mkdir("deep")
result += [shutil.make_archive("kept", "zip", "moved") and 0, sorted(zipfile.ZipFile("kept.zip").namelist())]
shutil.unpack_archive("kept.zip", "again")
os.remove("kept.zip")  # it has the time in it
result += [walked("again"), os.listdir("deep")]
try:
    shutil.copyfile("real.txt", "real.txt")
except shutil.SameFileError:
    result.append("same")
""",
    "removed and made again": """
shutil.rmtree("deep")
os.remove("real.txt")
gone = os.path.exists("deep/er/x.txt"), os.path.exists("real.txt"), sorted(os.listdir("."))
os.makedirs("deep/er")
here = os.listdir("deep/er"), os.path.exists("deep/er/x.txt"), refused(open, "real.txt")
Path("real.txt").write_text("again")
result = gone, here, read("real.txt"), refused(os.rmdir, "deep"), os.removedirs("deep/er")
""",
    "moved folders": """
os.rename("deep", "moved")
Path("moved/er/new.txt").write_text("new")
os.rename("moved/er", "er")
result = walked("."), read("er/x.txt"), refused(os.rename, "folder", "er")
""",
    "links": """
os.symlink("folder", "linked")
Path("linked/new.txt").write_text("new")
os.link("real.txt", "hard.txt")
with open("hard.txt", "a") as file:
    file.write("hard")
result = (
    read("folder/new.txt"), read("linked/in.txt"), sorted(os.listdir("linked")), read("real.txt"),
    read("to_real"), os.path.islink("to_real"), os.path.realpath("linked/new.txt").endswith("folder/new.txt"),
)
with open("to_real", "a") as file:
    file.write("!")
os.remove("linked")
result += (read("real.txt"), os.path.islink("to_real"), os.path.lexists("linked"), os.path.exists("folder/new.txt"))
os.symlink("circle", "circle")
result += (os.path.exists("circle"), refused(open, "circle"))
""",
    "another folder": """
os.mkdir("made")
os.chdir("made")
Path("x.txt").write_text("x")
result = [os.getcwd().endswith("work/made"), os.listdir(), read("../real.txt"), Path.cwd().name, read("x.txt")]
result += [sorted(os.listdir("..")), os.path.abspath("x.txt").endswith("work/made/x.txt"), open("../real.txt").name]
result += [[*map(str, Path("..").glob("fol*"))], os.path.relpath("x.txt", "..")]
os.chdir("../folder")
result += [os.listdir(), os.path.basename(os.getcwd())]
Path("new.txt").write_text("y")
os.chdir("..")
result += [read("folder/new.txt"), os.path.exists("made/x.txt")]
""",
    "attributes": """
os.chmod("real.txt", 0o600)
os.utime("real.txt", (1_000_000, 2_000_000))
os.truncate("folder/in.txt", 1)
Path("new.txt").touch(mode=0o640)
result = (
    oct(os.stat("real.txt").st_mode), os.path.getmtime("real.txt"), oct(os.stat("new.txt").st_mode),
    os.path.getsize("folder/in.txt"), os.access("real.txt", os.R_OK), os.stat("new.txt").st_nlink,
)
shutil.copystat("real.txt", "new.txt")
result += (os.path.getmtime("new.txt"),)
os.rename("new.txt", "renamed.txt")
os.utime("folder/in.txt", ns=(3, 4))
os.chmod("folder", 0o711)
result += (os.stat("renamed.txt").st_mtime_ns, os.stat("folder/in.txt").st_atime_ns, oct(os.stat("folder").st_mode))
Path("renamed.txt").write_text("later")
Path("folder/in.txt").touch()
result += (os.path.getmtime("renamed.txt") > 1e9, os.path.getmtime("folder/in.txt") > 1e9)
result += (oct(os.stat("renamed.txt").st_mode), [oct(e.stat().st_mode) for e in os.scandir() if e.name == "real.txt"])
""",
    "descriptors": """
descriptor = os.open("a.bin", os.O_RDWR | os.O_CREAT, 0o600)
os.write(descriptor, b"12")
os.lseek(descriptor, 0, 0)
result = [os.read(descriptor, 2), os.fstat(descriptor).st_size]
os.fsync(descriptor)
os.close(descriptor)
descriptor = os.open("real.txt", os.O_WRONLY | os.O_APPEND)
with os.fdopen(descriptor, "a") as file:
    file.write("more")
folder = os.open("deep", os.O_RDONLY)
os.fsync(folder)
os.close(folder)
result += [read("real.txt"), refused(os.open, "real.txt", os.O_CREAT | os.O_EXCL | os.O_WRONLY)]
result += [open("b", "w", opener=lambda path, flags: os.open(path, flags, 0o600)).write("b")]
result += [read("b"), oct(os.stat("b").st_mode)]
""",
    "temporary files": """
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "x").write_text("x")
    result = [os.listdir(folder)]
result += [os.path.exists(folder)]
with tempfile.NamedTemporaryFile("w+", suffix=".txt") as file:
    file.write("x")
    file.flush()
    result += [open(file.name).read()]
result += [os.path.exists(file.name)]
with tempfile.NamedTemporaryFile("w+", dir=".") as file:
    result += [len(os.listdir(".")), os.path.exists(file.name)]
result += [os.path.exists(file.name), len(os.listdir("."))]
with tempfile.TemporaryFile() as file:
    file.write(b"x")
    file.seek(0)
    result += [file.read()]
descriptor, name = tempfile.mkstemp()
with open(descriptor, "w") as file:
    file.write("x")
shutil.move(name, "kept.txt")
result += [read("kept.txt"), os.path.exists(name), os.path.isdir(tempfile.mkdtemp())]
""",
    "packed": """
unlike = "times are in the archives"
for module, name in ((gzip, "a.gz"), (bz2, "a.bz2"), (lzma, "a.xz")):
    with module.open(name, "wt") as file:
        file.write("packed")
with zipfile.ZipFile("a.zip", "w") as archive:
    archive.write("real.txt")
    archive.write("a.gz")
with tarfile.open("a.tar.gz", "w:gz") as archive:
    archive.add("folder")
    archive.add("a.zip")
with tarfile.open("a.tar.gz") as archive:
    archive.extractall("out")
result = (
    gzip.open("a.gz", "rt").read(), bz2.open("a.bz2", "rt").read(), lzma.open("a.xz", "rt").read(),
    zipfile.ZipFile("a.zip").namelist(), zipfile.is_zipfile("out/a.zip"), walked("out"),
)
""",
    "arrays": """
array = np.arange(10_000).reshape(10, -1)
np.save("a.npy", array)
np.savez("a.npz", array=array)
np.savetxt("a.txt", array[:2, :3])
array.tofile("a.bin")
mapped = np.memmap("m.bin", np.int64, "w+", shape=(4,))
mapped[:] = 3
mapped.flush()
changed = np.load("a.npy", mmap_mode="r+")
changed[0, 0] = -1
changed.flush()
result = (
    np.load("a.npy").tolist(), np.load("a.npz")["array"].sum(), np.loadtxt("a.txt").tolist(),
    np.fromfile("a.bin", int).sum(), np.fromfile("m.bin", int).tolist(), np.load("real.npy").tolist(),
    np.lib.format.open_memmap("o.npy", "w+", shape=(2,)).tolist(), np.genfromtxt("a.txt").shape,
)
real = np.memmap("real.npy", mode="r+")
real[-1] = 7
real.flush()
result += (np.load("real.npy")[-1],)
""",
    "formats": """
json.dump({"a": 1}, open("a.json", "w"))
pickle.dump([1], open("a.pkl", "wb"))
with open("a.csv", "w", newline="") as file:
    csv.writer(file).writerow([1, 2])
with io.open("b.txt", "w", encoding="utf-16") as file:
    file.write("ä")
import configparser, xml.etree.ElementTree as tree
parser = configparser.ConfigParser()
parser["a"] = {"b": "c"}
parser.write(open("a.ini", "w"))
tree.ElementTree(tree.Element("a")).write("a.xml")
result = read("a.json"), read("a.csv"), pickle.load(open("a.pkl", "rb")), read("a.xml"), open("b.txt", "rb").read()
""",
    "logs": """
logger = logging.Logger("mine")
logger.addHandler(logging.FileHandler("new.log", delay=True))
logger.addHandler(logging.FileHandler("real.txt"))
logger.addHandler(__import__("logging.handlers").handlers.RotatingFileHandler("r.log", maxBytes=8, backupCount=2))
for i in range(3):
    logger.warning("epoch %d", i)
logging.shutdown()
result = read("new.log"), read("real.txt"), read("r.log"), read("r.log.2")
""",
    "the last three": """
for step in range(6):
    Path(f"deep/step-{step}.ckpt").write_text(str(step))
    kept = sorted(f for f in os.listdir("deep") if f.endswith(".ckpt"))
    for old in kept[:-3]:
        os.remove(os.path.join("deep", old))
result = sorted(os.listdir("deep"))
""",
    "modules": """
import importlib, sys
sys.path.insert(0, "")
Path("my_new_module.py").write_text("answer = 42")
os.makedirs("my_package")
Path("my_package/__init__.py").write_text("from my_package.part import answer")
Path("my_package/part.py").write_text("answer = 43")
importlib.invalidate_caches()
import my_new_module, my_package
result = my_new_module.answer, my_package.answer, my_new_module.__file__.endswith("work/my_new_module.py")
import py_compile
result += (py_compile.compile("my_new_module.py"), os.path.isdir("__pycache__"))
shutil.rmtree("__pycache__", ignore_errors=True)
shutil.rmtree("my_package/__pycache__", ignore_errors=True)
""",
    "names in bytes": """
Path("a").write_text("x")
result = sorted(os.listdir(b".")), open(b"a").read(), os.path.exists(b"a"), os.readlink(b"to_real"), glob.glob(b"re*")
""",
    "room in a new folder, and no name": """
os.mkdir("made")
result = shutil.disk_usage("made").total > 0, refused(os.mkdir, ""), refused(os.makedirs, "", exist_ok=True)
""",
    "devices": """
open(os.devnull, "w").write("x")
here, there = os.pipe()
open(there, "w").write("x")
open("x", "w").close()
result = os.read(here, 1), os.path.exists("/dev/null"), open("/dev/zero", "rb").read(2), os.listdir("/proc/self/task") != []
""",
}
