/** File with its path below what the user chose. */
export interface FoundFile {
  path: string;
  file: File;
}

/** Return the files of a drop, those in folders included. */
export async function droppedFiles(transfer: DataTransfer): Promise<FoundFile[]> {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
  return (await Promise.all(entries.map((entry) => filesOf(entry, "")))).flat();
}

/** Return the files of a file input. Those of a folder have their path in it. */
export function chosenFiles(files: FileList): FoundFile[] {
  return [...files].map((file) => ({ path: file.webkitRelativePath || file.name, file }));
}

async function filesOf(entry: FileSystemEntry, parent: string): Promise<FoundFile[]> {
  const path = parent + entry.name;
  if (isFile(entry)) {
    return [{ path, file: await new Promise<File>((resolve, reject) => entry.file(resolve, reject)) }];
  }
  const children = await childrenOf(entry as FileSystemDirectoryEntry);
  return (await Promise.all(children.map((child) => filesOf(child, `${path}/`)))).flat();
}

function isFile(entry: FileSystemEntry): entry is FileSystemFileEntry {
  return entry.isFile;
}

/** A reader gives up to a hundred entries at a time; an empty list ends it. */
async function childrenOf(folder: FileSystemDirectoryEntry): Promise<FileSystemEntry[]> {
  const reader = folder.createReader();
  const found: FileSystemEntry[] = [];
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) return found;
    found.push(...some);
  }
}
