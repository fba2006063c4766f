import { useId } from "react";

interface Props {
  label: string;
  onFiles: (files: FileList) => void;
  folder?: boolean;
  multiple?: boolean;
  accept?: string;
  hint?: string;
}

/** File input. With `folder`, the browser asks for a folder and gives all files in it. */
export function FileField({ label, onFiles, folder = false, multiple = false, accept, hint }: Props) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <input
        id={id}
        type="file"
        multiple={multiple}
        accept={accept}
        aria-describedby={hint === undefined ? undefined : `${id}-hint`}
        ref={(element) => {
          if (element !== null) element.webkitdirectory = folder;
        }}
        onChange={({ target }) => target.files !== null && target.files.length > 0 && onFiles(target.files)}
      />
      {hint !== undefined && (
        <p id={`${id}-hint`} className="quiet">
          {hint}
        </p>
      )}
    </div>
  );
}
